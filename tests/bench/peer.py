"""PyTorch's side of bench.c: reads one request a line, does it once, prints the seconds it took.

A request is prepared and warmed when it first comes; the last one's tensors are kept.
  product NT|NN|TN M K N threads
  step|prefill|decode L H C V B T threads [bf16]
  attention H T threads
"""
import resource, sys, time
try:
    import torch, torch.nn as nn, torch.nn.functional as F
except ImportError:
    sys.exit(1)


class Block(nn.Module):
    def __init__(self, C, H):
        super().__init__()
        self.H = H
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj, self.fc, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.H, C // self.H).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(C, 2))
        if cache is not None:
            at = cache[2]
            cache[0][:, :, at:at + T] = k
            cache[1][:, :, at:at + T] = v
            cache[2] = at + T
            k, v = cache[0][:, :, :at + T], cache[1][:, :, :at + T]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=T > 1)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, L, H, C, V, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(positions, C)
        self.h = nn.ModuleList(Block(C, H) for _ in range(L))
        self.ln_f = nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets=None, caches=None, at=0):
        x = self.wte(ids) + self.wpe(torch.arange(at, at + ids.shape[1]))
        for i, block in enumerate(self.h):
            x = block(x, caches[i] if caches else None)
        x = self.ln_f(x)
        if targets is None:
            return F.linear(x[:, -1:], self.wte.weight)
        return F.cross_entropy(F.linear(x, self.wte.weight).view(-1, self.wte.weight.shape[0]), targets.view(-1))


def model_job(kind, L, H, C, V, B, T, bf16):
    model = GPT(L, H, C, V, max(T, 1024))
    ids = torch.randint(V, (B, T))
    if kind == "step":
        targets = torch.randint(V, (B, T))
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

        def once():
            began, n = time.perf_counter(), 0
            while True:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = model(ids, targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                n += 1
                if time.perf_counter() - began >= 0.2:
                    return (time.perf_counter() - began) / n
        return once
    model.eval()
    if bf16:
        model = model.bfloat16()
    dtype = torch.bfloat16 if bf16 else torch.float32

    def infer():
        with torch.inference_mode():
            caches = [[torch.zeros(1, H, T + 16, C // H, dtype=dtype), torch.zeros(1, H, T + 16, C // H, dtype=dtype), 0] for _ in range(L)]
            began = time.perf_counter()
            logits = model(ids, None, caches, 0)
            if kind == "prefill":
                return time.perf_counter() - began
            began = time.perf_counter()
            for i in range(16):
                logits = model(logits[:, -1].argmax(-1, keepdim=True), None, caches, T + i)
            return (time.perf_counter() - began) / 16
    return infer


def product_job(o, M, K, N, bf16):
    dtype = torch.bfloat16 if bf16 else torch.float32
    A = torch.randn(M, K, dtype=dtype)
    B = torch.randn(*((M, N) if o == "TN" else (N, K) if o == "NT" else (K, N)), dtype=dtype)
    C = torch.zeros(*((K, N) if o == "TN" else (M, N)), dtype=dtype)

    def once():
        began, n = time.perf_counter(), 0
        while True:
            if o == "TN":
                C.addmm_(A.t(), B)
            else:
                torch.mm(A, B.t() if o == "NT" else B, out=C)
            n += 1
            if time.perf_counter() - began >= 0.02:
                return (time.perf_counter() - began) / n
    return once


def attention_job(H, T):
    q, k, v = (torch.randn(1, H, T, 64, requires_grad=True) for _ in range(3))
    dy = torch.randn(1, H, T, 64)

    def once():
        began = time.perf_counter()
        torch.autograd.grad(F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v), dy)
        return time.perf_counter() - began
    return once


def prepare(words):
    bf16 = words[-1] == "bf16"
    if bf16:
        words = words[:-1]
    kind, numbers = words[0], [int(w) for w in words[1:] if w.isdigit()]
    torch.set_num_threads(numbers[-1])
    if kind == "product":
        return product_job(words[1], *numbers[:3], bf16)
    if kind == "attention":
        return attention_job(*numbers[:2])
    return model_job(kind, *numbers[:6], bf16)


if len(sys.argv) > 1:                                   # --memory: the peak of two steps
    once = prepare("step 12 12 768 50257 1 1024 2".split())
    once(); once()
    sys.exit(0)
print("PyTorch", torch.__version__, flush=True)
last, once = None, None
for line in sys.stdin:
    if line != last:
        once = None
        once = prepare(line.split())
        once()
        last = line
    print(once(), flush=True)
