#!/usr/bin/env python3
"""Attention-only models exchanged with PyTorch, safetensors, transformers and tokenizers (outside `make test`).

The modules below follow what is known of the family on the Hugging Face hub: embed_tokens, layers.<i>, lm_head, a
Llama-style config.json, attention_mask, labels shifted inside and ignored at -100.  Two ways to write the layer:
plain projections, and projections in front of torch's own packed attention module.  Run from the repository's root:
    python3 tests/interchange/attention_only.py
Ends with `N passed, N failed`.
"""
import json, math, os, shutil, subprocess, sys, tempfile
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

work = tempfile.mkdtemp()
program = os.path.join(work, "mapped")
subprocess.check_call([os.environ.get("CC", "cc"), "-std=c99", "-O2", "-I.", "-o", program, "tests/interchange/mapped.c", "-lm"])
passed = failed = 0
B, T = 4, 12


class Plain(nn.Module):
    def __init__(self, C, H, scaled):
        super().__init__()
        self.H, self.scaled = H, scaled
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"): setattr(self, name, nn.Linear(C, C, bias=False))

    def forward(self, x, blocked):
        B, T, C = x.shape
        split = lambda y: y.view(B, T, self.H, C // self.H).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        s = q @ k.transpose(-1, -2) * (1 / math.sqrt(C // self.H) if self.scaled else 1)
        p = s.masked_fill(blocked[:, None], -math.inf).softmax(-1).nan_to_num(0.0)
        return self.o_proj((p @ v).transpose(1, 2).reshape(B, T, C))


class Packed(nn.Module):
    def __init__(self, C, H, scaled):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj"): setattr(self, name, nn.Linear(C, C, bias=False))
        self.attn = nn.MultiheadAttention(C, H, bias=False, batch_first=True)
        self.H = H

    def forward(self, x, blocked):
        dead = blocked.all(-1, keepdim=True)                   # such rows would be NaN: let them look, then empty them
        mask = (blocked & ~dead).repeat_interleave(self.H, 0)
        y, _ = self.attn(self.q_proj(x), self.k_proj(x), self.v_proj(x), attn_mask=mask, need_weights=False)
        return y.masked_fill(dead, 0)


class Layer(nn.Module):
    def __init__(self, kind, C, H, scaled):
        super().__init__()
        self.self_attn = kind(C, H, scaled)


class AttentionOnly(nn.Module):
    def __init__(self, kind, L, C, H, V, scaled=True):
        super().__init__()
        self.embed_tokens = nn.Embedding(V, C)
        self.layers = nn.ModuleList(Layer(kind, C, H, scaled) for _ in range(L))
        self.lm_head = nn.Linear(C, V, bias=False)

    def forward(self, ids, mask, labels):
        x, T = self.embed_tokens(ids), ids.shape[1]
        future = torch.ones(T, T, dtype=torch.bool).triu(1)[None]
        blocked = future | (mask[:, None, :] == 0) | (mask[:, :, None] == 0)
        for layer in self.layers: x = x + layer.self_attn(x, blocked)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)


def save(model, name, **more):
    path = os.path.join(work, name)
    os.makedirs(path, exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, os.path.join(path, "model.safetensors"), metadata={"format": "pt"})
    L, (V, C) = len(model.layers), model.embed_tokens.weight.shape
    LlamaConfig(vocab_size=V, hidden_size=C, num_hidden_layers=L, num_attention_heads=4, intermediate_size=C, tie_word_embeddings=False).save_pretrained(path)
    if more: json.dump({**json.load(open(os.path.join(path, "config.json"))), **more}, open(os.path.join(path, "config.json"), "w"))
    return os.path.join(path, "model.safetensors")


def ours(path, batch, out="-", like="-", map="-"):
    numbers = [str(int(x)) for a in batch for x in a.reshape(-1)]
    run = subprocess.run([program, path, map, out, like, str(B), str(T)] + numbers, capture_output=True, text=True)
    if run.returncode: raise RuntimeError(run.stderr.strip())
    lines = run.stdout.splitlines()
    return np.array([[float(x) for x in line.split()] for line in lines[1:]]).reshape(B, T, -1), float(lines[0]), run.stderr


def check(name, good, what=""):
    global passed, failed
    passed, failed = passed + bool(good), failed + (not good)
    print(f"{'ok    ' if good else 'FAILED'} {name:64s} {what}")


def near(name, a, b, tolerance=5e-6):
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    check(name, error <= tolerance, f"{error:.1e}")


def batch_of(V):
    ids, mask = torch.randint(V, (B, T)), torch.ones(B, T, dtype=torch.long)
    mask[1, 7:], mask[2, :5], mask[3, :] = 0, 0, 0                # right, left, nothing but padding
    labels = ids.masked_fill(mask == 0, -100)
    labels[2, 5] = -100                                       # torch would have padding predict the first real token; gptstatic does not
    return ids, mask, labels


torch.manual_seed(1)
for kind, word in ((Plain, "plain"), (Packed, "packed")):
    for L, C, V in ((0, 128, 4096), (1, 128, 4096), (2, 64, 300), (4, 32, 50)):
        model = AttentionOnly(kind, L, C, 4, V).eval()
        with torch.no_grad():
            for p in model.parameters(): p.copy_(0.3 * torch.randn_like(p) / (1 if p.shape[0] == V else math.sqrt(C) / 4))
        batch = batch_of(V)
        real = batch[1].numpy() == 1
        path = save(model, f"{word}{L}")
        with torch.no_grad(): logits, loss = model(*batch)
        if L == 0: check(f"{word}, {L} layers: the hub's size", C != 128 or os.path.getsize(path) - 4194304 < 2000)
        if L == 1 and kind is Packed: check("packed, 1 layer: the hub's size, 4.65 MB", abs(os.path.getsize(path) - 4653056) < 2000)
        got, lost, table = ours(path, batch)
        near(f"torch -> gptstatic, {word}, {L} layers, real tokens", got[real], logits.numpy()[real])
        near(f"torch -> gptstatic, {word}, {L} layers, loss", np.array([lost]), np.array([loss.item()]))
        out = os.path.join(work, f"back_{word}{L}", "model.safetensors")
        os.makedirs(os.path.dirname(out), exist_ok=True)
        ours(path, batch, out, path)
        again = AttentionOnly(kind, L, C, 4, V).eval()
        again.load_state_dict(load_file(out))                      # strict: the same names and shapes
        with torch.no_grad(): near(f"gptstatic -> torch, {word}, {L} layers, same names", again(*batch)[0].numpy()[real], logits.numpy()[real])
        config = LlamaConfig.from_pretrained(os.path.dirname(out))
        check(f"gptstatic -> transformers, {word}, {L} layers, config.json", (config.vocab_size, config.hidden_size, config.num_hidden_layers,
              config.num_attention_heads, config.tie_word_embeddings) == (V, C, L, 4 if L else config.num_attention_heads, False))
        ours(path, batch, out)                                     # under Llama's names whatever they were
        again = AttentionOnly(Plain, L, C, 4, V).eval()
        again.load_state_dict(load_file(out))
        with torch.no_grad(): near(f"gptstatic -> torch, {word}, {L} layers, Llama's names", again(*batch)[0].numpy()[real], logits.numpy()[real])

# scores without 1/sqrt(D), told by the settings
model = AttentionOnly(Plain, 2, 32, 4, 50, scaled=False).eval()
batch = batch_of(50)
with torch.no_grad(): near("torch -> gptstatic, unscaled", ours(save(model, "unscaled", unscaled_scores=True), batch)[0][0], model(*batch)[0][0].numpy())

# other names by a map, and a transposed square weight against a probe
model = AttentionOnly(Plain, 2, 32, 4, 50).eval()
batch = batch_of(50)
with torch.no_grad(): logits, _ = model(*batch)
rename = lambda k: k.replace("embed_tokens.weight", "W_E").replace("lm_head.weight", "W_U").replace("layers", "blocks").replace("self_attn.", "").replace("_proj.weight", "")
tensors = {rename(k): v.t().contiguous() if "_proj" in k else v.contiguous() for k, v in model.state_dict().items()}
path = os.path.join(work, "by_map", "model.safetensors")
os.makedirs(os.path.dirname(path), exist_ok=True)
save_file(tensors, path)
names = {"W_E": "wte.weight", "W_U": "lm_head.weight", "@config": {"num_attention_heads": 4},
         "@probe": {"tokens": batch[0][0].tolist(), "ids": [0, 7, 21, 49], "logits": logits[0, -1, [0, 7, 21, 49]].tolist()}}
map = os.path.join(work, "map.json")
json.dump({**names, **{"blocks.{i}." + x: f"h.{{i}}.attn.{x}.weight [in,out]" for x in "qkvo"}}, open(map, "w"))
near("torch -> gptstatic, a map, [in,out], with a probe", ours(path, batch, map=map)[0][0], logits[0].numpy())
json.dump({**names, **{"blocks.{i}." + x: f"h.{{i}}.attn.{x}.weight" for x in "qkvo"}}, open(map, "w"))
try:
    ours(path, batch, map=map)
    check("a map that reads square weights the wrong way is refused", False)
except RuntimeError as e: check("a map that reads square weights the wrong way is refused", "all square matrices transposed" in str(e), str(e)[-80:])

shutil.rmtree(work)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
