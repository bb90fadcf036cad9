"""Times gpu.cu's attention beside PyTorch's flash and cuDNN kernels: bf16, causal, interleaved, medians, one process.

    bench.py [--rounds N] [--only NAME] [--shapes 0,1] [--errors]
"""
import argparse, statistics, subprocess, sys, time
try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    print("skipped: no PyTorch"); sys.exit(0)

ap = argparse.ArgumentParser()
ap.add_argument("--rounds", type=int, default=9); ap.add_argument("--only", default=""); ap.add_argument("--shapes", default="0,1,2,3,4,5")
ap.add_argument("--errors", action="store_true"); ap.add_argument("--scaling", action="store_true"); ap.add_argument("--parts", action="store_true")
arg = ap.parse_args()
if not torch.cuda.is_available():
    print("skipped: no GPU"); sys.exit(0)
from gpts_gpu import Attention
dev = "cuda"
SHAPES = [(8, 12, 4096, 64), (4, 12, 8192, 64), (2, 16, 8192, 96), (64, 12, 256, 64), (1, 12, 4096, 64), (2, 16, 8192, 128)]


def pattern(n, S, W=64, R=8):
    """n patterns like trained ones: alpha normal 0.5, rho a power law; tails that continue it."""
    g = torch.Generator(device=dev).manual_seed(1)
    alpha = torch.randn(n, S, device=dev, generator=g) * .5
    rho = -torch.linspace(.8, 1.5, n, device=dev)[:, None] * torch.log1p(torch.arange(S, device=dev).float()) + .1 * torch.randn(n, S, device=dev, generator=g)
    decay = 1 - 2. ** -(torch.arange(R, device=dev).float() * .8 + 5)
    coef = (.02 * torch.exp2(-torch.arange(R, device=dev).float())).repeat(n, 1)
    return alpha.contiguous(), rho.contiguous(), [W] * n, coef.contiguous(), decay.repeat(n, 1).contiguous()


def kinds(H, share, letter):
    n = round(H * share)
    return "".join(letter if (i * n) // H != ((i + 1) * n) // H else "L" for i in range(H))      # spread over the layer


def sdpa(q, k, v, backend):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True).transpose(1, 2)


def block_ms(fn, n):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(); torch.cuda._sleep(int(1.2e6 * n)); a.record()                         # the spin lets the host run ahead
    for _ in range(n): fn()
    b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b) / n


def interleave(fns):
    count, times = {}, {k: [] for k in fns}
    for k, f in fns.items():
        f(); f(); count[k] = max(1, min(30, int(12 / max(block_ms(f, 2), 1e-3))))
    for _ in range(arg.rounds):
        for k, f in fns.items(): times[k].append(block_ms(f, count[k]))
    return {k: statistics.median(t) for k, t in times.items()}


def variants(B, H, T, D):
    make = lambda n: torch.randn(B, T, n, D, device=dev, dtype=torch.bfloat16).requires_grad_()
    q, k, v, dy = make(H), make(H), make(H), make(H).detach()
    fwd, both = {}, {}
    def add(name, f, inputs):
        if arg.only and arg.only not in name: return
        detached = [x.detach() for x in inputs]
        def forward():
            with torch.no_grad(): f(*detached)
        fwd[name] = forward; both[name] = lambda: torch.autograd.grad(f(*inputs), [x for x in inputs if x.numel()], dy)
    add("SDPA flash", lambda q, k, v: sdpa(q, k, v, SDPBackend.FLASH_ATTENTION), (q, k, v))
    add("SDPA cuDNN", lambda q, k, v: sdpa(q, k, v, SDPBackend.CUDNN_ATTENTION), (q, k, v))
    for letter, word in (("N", "linear"), ("X", "exact")):
        for share in ((0, .25, .5, 1) if letter == "N" else (.25, .5, 1)):
            ks = kinds(H, share, letter); U = ks.count("L")
            layer = Attention(ks, *(pattern(H - U, T) if U < H else ()))
            add(f"ours {share:.0%} {word}" if share else "ours all live", layer, (make(U), make(U), v) if U else (v.detach()[:, :, :0], v.detach()[:, :, :0], v))
    return fwd, both


def table(shape):
    fwd, both = variants(*shape)
    for k in list(fwd):
        try: fwd[k](); both[k](); torch.cuda.synchronize()
        except RuntimeError as e: print("  ", k, "failed:", str(e)[:100]); fwd.pop(k); both.pop(k)
    f, b = interleave(fwd), interleave(both)
    B, H, T, D = shape; flop = 2. * B * H * T * T * D
    print(f"B {B} H {H} T {T} D {D}: ms forward, forward + backward (TFLOP/s as if all were live)")
    for k in f: print(f"  {k:20s} {f[k]:8.4f} ({flop / f[k] / 1e9:4.0f})   {b[k]:8.4f} ({3.5 * flop / b[k] / 1e9:4.0f})")
    sys.stdout.flush()
    if arg.parts:
        from torch.profiler import profile, ProfilerActivity
        for k in both:
            with profile(activities=[ProfilerActivity.CUDA]) as p:
                for _ in range(3): both[k]()
                torch.cuda.synchronize()
            for e in sorted(p.key_averages(), key=lambda e: -e.self_device_time_total)[:8]:
                if e.self_device_time_total: print(f"    {k:18s} {e.self_device_time_total / 3e3:8.4f} {e.key.replace('(anonymous namespace)::', '')[:80]}")


def scaling():
    print("one static head, B 8 D 64, forward + backward, ms by T")
    for letter, top in (("N", 65536), ("X", 8192)):
        T = 1024
        while T <= top:
            v = torch.randn(8, T, 12, 64, device=dev, dtype=torch.bfloat16).requires_grad_(); dy = torch.randn_like(v)
            e = v.detach()[:, :, :0]; layer = Attention(letter * 12, *pattern(12, T))
            t = statistics.median(block_ms(lambda: torch.autograd.grad(layer(e, e, v), v, dy), 5) for _ in range(5)) / 12
            print(f"  {'linear' if letter == 'N' else 'exact'} {T:6d} {t:.4f}"); T *= 2


def errors():
    """Our bf16 error and PyTorch's on the same inputs, against float64."""
    for (B, H, T, D) in ((2, 4, 1000, 64), (1, 4, 2048, 96), (2, 4, 777, 128)):
        make = lambda: torch.randn(B, T, H, D, device=dev, dtype=torch.bfloat16).requires_grad_()
        q, k, v, dy = make(), make(), make(), make().detach()
        rel = lambda a, b: float(((a.double() - b).norm() / b.norm()).detach())
        q64, k64, v64 = (x.detach().double().requires_grad_() for x in (q, k, v))
        s = torch.einsum("bihd,bjhd->bhij", q64, k64) / D ** .5
        p = s.masked_fill(torch.ones(T, T, device=dev, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
        y = torch.einsum("bhij,bjhd->bihd", p, v64); g = torch.autograd.grad(y, (q64, k64, v64), dy.double())
        ours, ref = Attention("L" * H)(q, k, v), sdpa(q, k, v, SDPBackend.FLASH_ATTENTION)
        go, gr = torch.autograd.grad(ours, (q, k, v), dy), torch.autograd.grad(ref, (q, k, v), dy)
        print(f"live   T {T} D {D}, ours / PyTorch:", *(f"{n} {rel(a, c):.2e}/{rel(b, c):.2e}" for n, a, b, c in zip(("y", "dq", "dk", "dv"), (ours, *go), (ref, *gr), (y, *g))))
        for letter in "XN":
            alpha, rho, W, coef, decay = pattern(H, T); e = v.detach()[:, :, :0]
            yo = Attention(letter * H, alpha, rho, W, coef, decay)(e, e, v); do, = torch.autograd.grad(yo, v, dy)
            d = torch.arange(T, device=dev); r = rho.double()
            if letter == "N": r = torch.where(d < W[0], r, (coef.double()[:, :, None] * decay.double()[:, :, None] ** (d - W[0]).clamp(min=0)).sum(1).log())
            dist = d[:, None] - d[None]
            P = (alpha.double()[:, None] + r[:, dist.clamp(min=0)]).masked_fill(dist < 0, float("-inf")).softmax(-1)
            run = lambda P, v, e: torch.einsum(e, P, v)
            y, dv = run(P, v.detach().double(), "hij,bjhd->bihd"), run(P, dy.double(), "hij,bihd->bjhd")
            yt, dvt = run(P.bfloat16(), v.detach(), "hij,bjhd->bihd"), run(P.bfloat16(), dy, "hij,bihd->bjhd")
            print(f"{'exact ' if letter == 'X' else 'linear'} T {T} D {D}, ours / bf16 P times v: y {rel(yo, y):.2e}/{rel(yt, y):.2e} dv {rel(do, dv):.2e}/{rel(dvt, dv):.2e}")


print(time.strftime("%Y-%m-%d %H:%M"), end=" ")
try: print(subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip(), "torch", torch.__version__)
except OSError: pass
if arg.errors: errors()
for i in arg.shapes.split(","):
    if i: table(SHAPES[int(i)])
if arg.scaling: scaling()
