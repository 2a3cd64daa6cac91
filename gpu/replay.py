"""Replays recordings on an NVIDIA GPU through the driver API. usage: replay.py DIR (a folder with models.json)"""
import ctypes as C, json, sys, os, time, array, struct, math
cu = C.CDLL("libcuda.so.1")
def ck(r, what):
    if r:
        s = C.c_char_p(); cu.cuGetErrorString(r, C.byref(s)); raise RuntimeError(f"{what}: {r} {s.value}")
def setup():
    ck(cu.cuInit(0), "init"); d = C.c_int(); ck(cu.cuDeviceGet(C.byref(d), 0), "device"); ctx = C.c_void_p()
    ck(cu.cuDevicePrimaryCtxRetain(C.byref(ctx), d), "ctx"); ck(cu.cuCtxSetCurrent(ctx), "cur")
def module(path):
    text = open(path, "rb").read() + b"\0"; m = C.c_void_p(); log = C.create_string_buffer(8192)
    opts = (C.c_int * 2)(5, 6); vals = (C.c_void_p * 2)(C.cast(log, C.c_void_p), 8192)
    r = cu.cuModuleLoadDataEx(C.byref(m), text, 2, opts, vals)
    if r: raise RuntimeError(f"load {path}: {r} {log.value[:500]}")
    return m
def alloc(n):
    p = C.c_uint64(); ck(cu.cuMemAlloc_v2(C.byref(p), C.c_size_t(max(n, 4))), "alloc"); return p.value
def replay(folder, m):
    mod = module(f"{folder}/{m['ptx']}"); rec = json.load(open(f"{folder}/{m['recording']}")); bufs, funcs = {}, {}
    for name, b in rec["buffers"].items():
        p = alloc(b["bytes"]); bufs[name] = p
        if b.get("file"):
            data = open(f"{folder}/{m['weights']}", "rb").read(); assert len(data) == b["bytes"], (len(data), b)
            ck(cu.cuMemcpyHtoD_v2(C.c_uint64(p), data, C.c_size_t(len(data))), "weights")
        elif not os.environ.get("NOFILL"): ck(cu.cuMemsetD8_v2(C.c_uint64(p), 0xFF, C.c_size_t(b["bytes"])), "fill")
    launches, found = 0, {}
    for ps in rec["passes"]:
        for w in ps["writes"]:
            data = array.array("I", w["words"]).tobytes()
            ck(cu.cuMemcpyHtoD_v2(C.c_uint64(bufs[w["buffer"]] + w["offset"]), data, C.c_size_t(len(data))), "write")
        for c in ps["commands"]:
            if "dispatch" not in c: continue
            d = c["dispatch"]; k = d["kernel"]
            if k not in funcs:
                f = C.c_void_p(); ck(cu.cuModuleGetFunction(C.byref(f), mod, k.encode()), k); funcs[k] = f
            args = [C.c_uint64(bufs[b["buffer"]] + b["offset"]) for b in d["bindings"]]
            args.append((C.c_uint32 * len(d["scalars"]))(*d["scalars"]))
            arr = (C.c_void_p * len(args))(*[C.cast(C.byref(a), C.c_void_p) for a in args])
            g = d["groups"]
            if 0 in g: continue
            ck(cu.cuLaunchKernel(funcs[k], g[0], g[1], g[2], d["threads"], 1, 1, 0, None, arr, None), k); launches += 1
        ck(cu.cuCtxSynchronize(), ps["label"])
        for r in ps["reads"]:
            data = C.create_string_buffer(r["bytes"])
            ck(cu.cuMemcpyDtoH_v2(data, C.c_uint64(bufs[r["buffer"]] + r["offset"]), C.c_size_t(r["bytes"])), "read")
            what = r.get("what") or {}
            if isinstance(what, dict) and "logits" in what: found[what["logits"]["sequence"]] = array.array("f", data.raw)
    for p in bufs.values(): cu.cuMemFree_v2(C.c_uint64(p))
    cu.cuModuleUnload(mod)
    return launches, found
setup(); folder = sys.argv[1]; only = sys.argv[2:]; bad = 0
for m in json.load(open(f"{folder}/models.json")):
    if only and m["name"] not in only: continue
    t = time.time()
    try: launches, found = replay(folder, m)
    except Exception as e: print(m["name"], "FAILED", e, flush=True); bad += 1; setup(); continue
    want = array.array("f", open(f"{folder}/{m['golden']}", "rb").read()); n = len(want); mean = sum(want) / n
    dev = math.sqrt(sum((x - mean) ** 2 for x in want) / n); worst = 0.0
    for s, got in found.items():
        e = max((abs(a - b) if a == a else 1e9) for a, b in zip(got, want)) / dev; worst = max(worst, e)
    ok = len(found) > 0 and worst < m["bound"]
    bad += not ok
    print(f"{m['name']}: {launches} launches, {len(found)} sequences, {worst:.1e} deviations {'ok' if ok else 'WRONG'} ({time.time()-t:.1f} s)", flush=True)
print("bad", bad)
