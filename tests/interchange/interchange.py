#!/usr/bin/env python3
"""Files exchanged with the real libraries: safetensors, torch, transformers (outside `make test`).

Run from the repository's root, in an environment that has them:
    python3 tests/interchange/interchange.py
Ends with `N passed, N failed`.
"""
import json, os, shutil, subprocess, sys, tempfile
import numpy as np, torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
import transformers
from transformers import GPT2Config, GPT2LMHeadModel

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)

work = tempfile.mkdtemp()
program = os.path.join(work, "logits")
subprocess.check_call([os.environ.get("CC", "cc"), "-std=c99", "-O2", "-I.", "-o", program, "tests/interchange/logits.c", "-lm"])
ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7]
passed = failed = 0


def ours(path, export="-", dtype="F32"):
    out = subprocess.run([program, path, export, dtype] + [str(i) for i in ids], capture_output=True, text=True)
    if out.returncode: raise RuntimeError(out.stderr.strip())
    return np.array([[float(x) for x in line.split()] for line in out.stdout.splitlines()])


def check(name, a, b, tolerance):
    global passed, failed
    error = np.linalg.norm(a - b) / np.linalg.norm(b)
    good = a.shape == b.shape and error <= tolerance
    passed, failed = passed + good, failed + (not good)
    print(f"{'ok    ' if good else 'FAILED'} {name:56s} {error:.1e}")


def gpt2(**more):
    torch.manual_seed(1)
    config = GPT2Config(**{**dict(vocab_size=61, n_positions=32, n_embd=128, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0), **more})
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for p in model.parameters(): p.add_(0.1 * torch.randn_like(p))
    return model


def theirs(model):
    with torch.no_grad(): return model(torch.tensor([ids])).logits[0].double().numpy()


def folder(name):
    path = os.path.join(work, name)
    os.makedirs(path, exist_ok=True)
    return path


# transformers -> us, by save_pretrained: config.json beside the file
for name, more in dict(plain={}, heads=dict(n_head=8), erf=dict(activation_function="gelu"), inner=dict(n_inner=200), relu=dict(activation_function="relu"),
                       untied=dict(tie_word_embeddings=False), unscaled=dict(scale_attn_weights=False), epsilon=dict(layer_norm_epsilon=0.0123456789012345)).items():
    model = gpt2(**more)
    model.save_pretrained(folder(name))
    check(f"transformers -> gptstatic, {name}", ours(os.path.join(folder(name), "model.safetensors")), theirs(model), 2e-6)
    # ... and back
    back = folder(name + "_back")
    ours(os.path.join(folder(name), "model.safetensors"), os.path.join(back, "model.safetensors"))
    check(f"gptstatic -> transformers, {name}", theirs(GPT2LMHeadModel.from_pretrained(back).eval()), theirs(model), 2e-6)

# base-model names, without config.json, with GPT-2's old mask buffers
model = gpt2()
tensors = {k[len("transformer."):]: v.contiguous() for k, v in model.state_dict().items() if k.startswith("transformer.")}
for l in range(3):
    tensors[f"h.{l}.attn.bias"] = torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32)
    tensors[f"h.{l}.attn.masked_bias"] = torch.tensor(-1e4)
save_file(tensors, os.path.join(folder("hub"), "model.safetensors"), metadata={"format": "pt"})
check("safetensors -> gptstatic, the hub's GPT-2 names", ours(os.path.join(work, "hub", "model.safetensors")), theirs(model), 2e-6)

# shards under an index
model.save_pretrained(folder("shards"), max_shard_size="300KB")
assert len(os.listdir(folder("shards"))) > 3
check("transformers -> gptstatic, shards", ours(os.path.join(work, "shards", "model.safetensors.index.json")), theirs(model), 2e-6)

# llm.c's .bin, written as its train_gpt2.py lays it out
for version, dtype in ((3, torch.float32), (5, torch.bfloat16)):
    header = np.zeros(256, dtype=np.int32)
    header[:8] = (20240326, version, 32, 61, 3, 2, 128, 128)
    state, blob = model.state_dict(), []
    put = lambda t: blob.append(t.detach().to(dtype).contiguous().view(torch.uint8).numpy().tobytes())
    put(torch.cat((state["transformer.wte.weight"], torch.zeros(67, 128))))
    put(state["transformer.wpe.weight"])
    for kind in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
                 "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"):
        for l in range(3):
            t = state[f"transformer.h.{l}.{kind}"]
            put(t.t() if t.dim() == 2 else t)
    put(state["transformer.ln_f.weight"])
    put(state["transformer.ln_f.bias"])
    path = os.path.join(work, f"llmc{version}.bin")
    open(path, "wb").write(header.tobytes() + b"".join(blob))
    rounded = gpt2()
    with torch.no_grad():
        for k, p in rounded.named_parameters(): p.copy_(state[k].to(dtype).float())
    check(f"llm.c version {version} -> gptstatic", ours(path), theirs(rounded), 2e-6)

# halves in and out
for dtype in ("F16", "BF16"):
    half = {k: v.to(torch.float16 if dtype == "F16" else torch.bfloat16) for k, v in tensors.items()}
    save_file(half, os.path.join(folder(dtype), "model.safetensors"), metadata={"format": "pt"})
    rounded = gpt2()
    with torch.no_grad():
        for k, p in rounded.named_parameters(): p.copy_(half[k[len("transformer."):]].float() if k.startswith("transformer.") else p)
    check(f"safetensors -> gptstatic, {dtype}", ours(os.path.join(work, dtype, "model.safetensors")), theirs(rounded), 2e-6)
    out = folder(dtype + "_out")
    ours(os.path.join(work, "hub", "model.safetensors"), os.path.join(out, "model.safetensors"), dtype)
    same = all(torch.equal(v.view(torch.int16), half[k[len("transformer."):]].view(torch.int16)) for k, v in load_file(os.path.join(out, "model.safetensors")).items())
    check(f"gptstatic -> safetensors, {dtype}, bit by bit", np.ones(1) * same, np.ones(1), 0)

# nanoGPT: torch Linear orientation, no biases or all, erf GELU, compiled names
for bias in (False, True):
    for compiled in ("", "_orig_mod."):
        model = gpt2(activation_function="gelu")
        if not bias:
            with torch.no_grad():
                for k, p in model.named_parameters():
                    if k.endswith(".bias"): p.zero_()
        nano = {}
        for k, v in model.state_dict().items():
            if k.endswith(".bias") and not bias: continue
            turn = any(part in k for part in (".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))
            nano[compiled + k] = (v.t() if turn else v).clone().contiguous()
        save_file(nano, os.path.join(folder("nano"), "ckpt.safetensors"))
        back = folder("nano_back")
        logits = ours(os.path.join(work, "nano", "ckpt.safetensors"), os.path.join(back, "model.safetensors"))
        check(f"nanoGPT -> gptstatic, bias {bias}, {compiled or 'plain'}", logits, theirs(model), 2e-6)
        check(f"nanoGPT -> gptstatic -> transformers, bias {bias}", theirs(GPT2LMHeadModel.from_pretrained(back).eval()), theirs(model), 2e-6)

# the golden files' own models: written by PyTorch, read by both
for path in sorted(os.listdir("tests/golden")):
    with safe_open(os.path.join("tests/golden", path), "pt") as f:
        ids_kept, ids = ids, f.get_tensor("golden.tokens")[0].tolist()
        check(f"golden -> gptstatic, {path}", ours(os.path.join("tests/golden", path)), f.get_tensor("golden.logits")[0].double().numpy(), 2e-5)
        ids = ids_kept

shutil.rmtree(work)
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0)
