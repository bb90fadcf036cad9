"""gpu.cu's attention on PyTorch tensors, through ctypes.

    layer = Attention("LLXN", alpha, rho, tail_start, coef, decay)     # one letter a head: live, exact, linear, pruned
    y = layer(q, k, v)         # q, k [B,T,live,D]; v, y [B,T,kept,D]; differentiable in q, k, v
"""
import ctypes as C
import os
import torch

LIB = C.CDLL(os.environ.get("GPTS_GPU", os.path.join(os.path.dirname(__file__), "../../build/libgptsgpu.so")))
P, I = C.c_void_p, C.c_int64
class Tensor(C.Structure): _fields_ = [("data", P), ("b", I), ("t", I), ("h", I)]
class Call(C.Structure):
    _fields_ = ([("type", C.c_int), ("D", C.c_int), ("B", I), ("T", I), ("H", C.c_int), ("R", C.c_int), ("kind", P), ("theta", C.c_double), ("rotated", C.c_int), ("scale", C.c_float),
                 ("plain", C.c_int), ("S", I)] + [(n, P) for n in ("alpha", "rho", "tail_start", "coef", "decay")] + [(n, Tensor) for n in ("q", "k", "v", "y", "dy", "dq", "dk", "dv")] +
                [("lse", P)] + [(n, P) for n in ("dalpha", "drho", "dcoef", "ddecay")] + [("prepared", P), ("prepared_bytes", C.c_size_t), ("workspace", P), ("workspace_bytes", C.c_size_t), ("stream", P), ("beside", P), ("events", P * 2), ("wide", P), ("error", C.c_char * 160)])
for n in ("struct_size", "prepared_size", "workspace_size"): getattr(LIB, "gpts_gpu_attention_" + n).restype = C.c_size_t
assert LIB.gpts_gpu_attention_struct_size() == C.sizeof(Call), "Call is not gpu.cu's gpts_gpu_attention"

class Attention:
    def __init__(self, kinds, alpha=None, rho=None, tail_start=None, coef=None, decay=None, theta=0.0, scale=0.0):
        self.keep = (alpha, rho, coef, decay)                          # float32 on the device: [n,S], [n,S], [n,R], [n,R]
        self.kind = (C.c_ubyte * len(kinds))(*["LXNP".index(c) for c in kinds]); self.wide = (C.c_ubyte * len(kinds))()
        self.call = c = Call(H=len(kinds), theta=theta, scale=scale, kind=C.addressof(self.kind), wide=C.addressof(self.wide))
        if alpha is not None: c.S, c.alpha, c.rho = alpha.shape[1], alpha.data_ptr(), rho.data_ptr()
        if coef is not None: c.R, c.coef, c.decay = coef.shape[1], coef.data_ptr(), decay.data_ptr()
        if tail_start is not None: self.tail = (C.c_int * len(tail_start))(*tail_start); c.tail_start = C.addressof(self.tail)
        self.U, self.shape = kinds.count("L"), None
    def run(self, name, **tensors):
        c, x = self.call, tensors["v"]
        for n, t in tensors.items(): setattr(c, n, t.data_ptr() if n == "lse" else Tensor(t.data_ptr(), *t.stride()[:3]))
        c.type, (c.B, c.T, _, c.D), c.stream = [torch.float32, torch.float16, torch.bfloat16].index(x.dtype), x.shape, torch.cuda.current_stream().cuda_stream
        if self.shape != (x.shape, x.dtype):                           # tables and workspace for a new shape
            size = lambda f, *a: max(1, getattr(LIB, "gpts_gpu_attention_" + f)(C.byref(c), *a))
            new = lambda n: torch.empty(n, dtype=torch.uint8, device=x.device)
            self.prepared = new(size("prepared_size")); c.prepared, c.prepared_bytes = self.prepared.data_ptr(), self.prepared.numel()
            if LIB.gpts_gpu_attention_prepare(C.byref(c)): raise RuntimeError(c.error.decode())
            self.workspace = new(max(size("workspace_size", 0), size("workspace_size", 1))); c.workspace, c.workspace_bytes = self.workspace.data_ptr(), self.workspace.numel()
            self.shape = (x.shape, x.dtype)
        if getattr(LIB, "gpts_gpu_attention_" + name)(C.byref(c)): raise RuntimeError(c.error.decode())
    def __call__(self, q, k, v): return Function.apply(self, q, k, v)

class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, q, k, v):
        y, lse = torch.empty_like(v), torch.empty(v.shape[0], max(1, layer.U), v.shape[1], device=v.device)
        layer.run("forward", q=q, k=k, v=v, y=y, lse=lse)
        ctx.layer = layer; ctx.save_for_backward(q, k, v, y, lse)
        return y
    @staticmethod
    def backward(ctx, dy):
        q, k, v, y, lse = ctx.saved_tensors; dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        ctx.layer.run("backward", q=q, k=k, v=v, y=y, lse=lse, dy=dy.contiguous(), dq=dq, dk=dk, dv=dv)
        return None, dq, dk, dv
