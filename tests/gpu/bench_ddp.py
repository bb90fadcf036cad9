"""bench_ddp.py - the peer of bench_ranks: PyTorch's DistributedDataParallel, compiled, with cuDNN's attention, the same model and windows.

    torchrun --nproc-per-node=2 tests/gpu/bench_ddp.py [--layers=12 --heads=12 --width=768 --T=4096 --B=8 --accum=8] [--rounds=3]

GPT-2's layout with rotary positions, no biases, exact GELU, tied output; fp32 weights under bf16 autocast, fused AdamW, clipping at 1."""
import os, statistics, sys, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

arg = lambda name, default: next((int(a.split("=")[1]) for a in sys.argv if a.startswith("--%s=" % name)), default)
L, H, C, T, B, ACCUM, ROUNDS, V = arg("layers", 12), arg("heads", 12), arg("width", 768), arg("T", 4096), arg("B", 8), arg("accum", 8), arg("rounds", 3), 50304
rank, local, size = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
torch.manual_seed(1)
torch.set_float32_matmul_precision("high")


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))

    def forward(self, x):
        return F.layer_norm(x, (C,), self.weight, None, 1e-5)


def turn(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.qkv, self.proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.fc, self.out = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (y.view(x.shape[0], T, H, C // H).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(C, dim=2))
        q, k = turn(q, cos, sin), turn(k, cos, sin)
        y = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True)[0]
        x = x + self.proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.out(F.gelu(self.fc(self.norm2(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.layers, self.norm = nn.Embedding(V, C), nn.ModuleList(Layer() for _ in range(L)), Norm()
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)
        angle = torch.outer(torch.arange(T).double(), 10000 ** (-torch.arange(0, C // H, 2).double() / (C // H))).float()
        self.register_buffer("cos", torch.cat((angle, angle), 1).cos().bfloat16(), persistent=False)
        self.register_buffer("sin", torch.cat((angle, angle), 1).sin().bfloat16(), persistent=False)

    def forward(self, tokens, targets):
        x = self.wte(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.wte.weight).view(-1, V).float(), targets.view(-1))


model = Model().cuda()
compiled = torch.compile(model, dynamic=False)
ddp = DistributedDataParallel(compiled, device_ids=[local], gradient_as_bucket_view=True, static_graph=False)
decay = [p for p in model.parameters() if p.dim() == 2]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}], lr=6e-4, betas=(0.9, 0.95), fused=True)
tokens = torch.randint(0, V, (B, T + 1), device="cuda")
x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def update(together):
    for k in range(ACCUM):
        f = ddp if together else compiled
        context = ddp.no_sync() if together and k + 1 < ACCUM else torch.autograd.profiler.record_function("x")
        with context:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = f(x, y)
            (loss / ACCUM).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss


def timed(together):
    for _ in range(2):
        update(together)
    ms = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        t = time.perf_counter()
        update(together)
        torch.cuda.synchronize()
        slowest = torch.tensor([1e3 * (time.perf_counter() - t)], device="cuda")
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        ms.append(slowest.item())
    return statistics.median(ms)


began = time.time()
# alone through the wrapper, without synchronising: DDP's hooks stay, its communication does not
def update_alone():
    with ddp.no_sync():
        for k in range(ACCUM):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = ddp(x, y)
            (loss / ACCUM).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


joined = timed(True)
peak = torch.cuda.max_memory_allocated() / 2 ** 30
together_update, update = update, lambda together: update_alone()
alone = timed(False)
if rank == 0:
    print("PyTorch %s, %d GPUs; %d layers, %d heads, width %d; T %d, B %d, %d micro-batches each" % (torch.__version__, size, L, H, C, T, B, ACCUM))
    print("  DDP compiled, cuDNN attention: alone %.1f ms an update, together %.1f ms, %.0f tokens/s of %d GPUs, efficiency %.4f, %.2f GiB (%.0f s in all)" % (
        alone, joined, B * T * ACCUM * size / joined * 1e3, size, alone / joined, peak, time.time() - began), flush=True)
dist.destroy_process_group()
