import ctypes as C, json, sys, array, collections
exec(open("replay.py").read().split("def replay")[0])
folder, name = sys.argv[1], sys.argv[2]
setup(); mod = module(f"{folder}/{name}.ptx"); rec = json.load(open(f"{folder}/{name}.json")); bufs = {}
for n, b in rec["buffers"].items():
    p = alloc(b["bytes"]); bufs[n] = p; ck(cu.cuMemsetD8_v2(C.c_uint64(p), 0x11 if b.get("file") else 0, C.c_size_t(b["bytes"])), "fill")
st = C.c_void_p(); ck(cu.cuStreamCreate(C.byref(st), 1), "stream"); funcs = {}
def launch(d):
    k = d["kernel"]
    if k not in funcs:
        f = C.c_void_p(); ck(cu.cuModuleGetFunction(C.byref(f), mod, k.encode()), k); funcs[k] = f
    args = [C.c_uint64(bufs[b["buffer"]] + b["offset"]) for b in d["bindings"]] + [(C.c_uint32 * len(d["scalars"]))(*d["scalars"])]
    arr = (C.c_void_p * len(args))(*[C.cast(C.byref(a), C.c_void_p) for a in args]); g = d["groups"]
    ck(cu.cuLaunchKernel(funcs[k], g[0], g[1], g[2], d["threads"], 1, 1, 0, st, arr, None), k)
def graph(ds):
    for d in ds: 
        if d["kernel"] not in funcs: launch(d)
    ck(cu.cuStreamSynchronize(st), "s"); ck(cu.cuStreamBeginCapture_v2(st, 0), "begin")
    for d in ds: launch(d)
    g = C.c_void_p(); ck(cu.cuStreamEndCapture(st, C.byref(g)), "end"); e = C.c_void_p(); ck(cu.cuGraphInstantiateWithFlags(C.byref(e), g, C.c_ulonglong(0)), "inst"); return e
def ms(e, times):
    a, b = C.c_void_p(), C.c_void_p(); cu.cuEventCreate(C.byref(a), 0); cu.cuEventCreate(C.byref(b), 0)
    for _ in range(5): ck(cu.cuGraphLaunch(e, st), "warm")
    best = 1e9
    for _ in range(3):
        cu.cuEventRecord(a, st)
        for _ in range(times): cu.cuGraphLaunch(e, st)
        cu.cuEventRecord(b, st); ck(cu.cuEventSynchronize(b), "sync"); t = C.c_float(); cu.cuEventElapsedTime(C.byref(t), a, b); best = min(best, t.value / times)
    return best
for p in rec["passes"]:
    for w in p["writes"]:
        data = array.array("I", w["words"]).tobytes(); ck(cu.cuMemcpyHtoD_v2(C.c_uint64(bufs[w["buffer"]] + w["offset"]), data, C.c_size_t(len(data))), "write")
ps = {}
for p in rec["passes"]: ps[p["label"].split("rows ")[-1]] = [c["dispatch"] for c in p["commands"] if "dispatch" in c]
labels = list(ps); print(labels)
for label in (labels[0], labels[-1]):
    ds = ps[label]; t = ms(graph(ds), 30); rows = [int(x) for x in label.split("..")]; n = rows[1] - rows[0]
    print(f"{name} rows {label}: {len(ds)} launches, {t:.3f} ms, {n / t * 1000:.0f} tokens/s", flush=True)
    by = collections.OrderedDict()
    for d in ds: by.setdefault((d["kernel"], tuple(d["groups"]), d["threads"]), []).append(d)
    for (k, g, th), l in by.items():
        some = (l * (64 // len(l) + 1))[:64]; each = ms(graph(some), 5) / 64
        w = sum(b["bytes"] for b in l[0]["bindings"] if b["buffer"] == "weights")
        print(f"   {k:22} x{len(l):3} {str(g):18} {th:4} threads {each*1000:8.2f} us {w/each/1e6:8.0f} GB/s of weights {100*each*len(l)/t:5.1f}%", flush=True)
