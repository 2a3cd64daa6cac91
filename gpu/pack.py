import json, os, subprocess, sys, shutil
from safetensors import safe_open
import struct
M='target/tests'; OUT=sys.argv[1]; os.makedirs(OUT, exist_ok=True); models=[]
F="-x c++ -std=c++17 --target=nvptx64-nvidia-cuda -march=sm_90 -Xclang -target-feature -Xclang +ptx80 -O2 -ferror-limit=0 -S -Igpu".split()
for name in sys.argv[2:]:
    crate=f'{M}/crates/{name}'; model=None
    for m in os.listdir('tests/models'):
        if name.startswith(m.replace('_','-')+'-') and (model is None or len(m)>len(model)): model=m
    g=json.load(open(f'tests/models/{model}/golden.json'))['sequences']
    i=max(range(len(g)), key=lambda i: len(g[i]['ids']) if len(g[i]['ids'])<200 else 0)
    ids=g[i]['ids']
    subprocess.run(['python3','gpu/msl2cuda.py',f'{crate}/src/kernels.metal','--clang','-o',f'{OUT}/{name}.cu'],check=True)
    r=subprocess.run(['clang-19',*F,'-o',f'{OUT}/{name}.ptx',f'{OUT}/{name}.cu'],capture_output=True,text=True)
    if r.returncode: print(name, [l for l in r.stderr.splitlines() if 'error' in l][:3]); continue
    os.remove(f'{OUT}/{name}.cu')
    n=len(ids); few=min(8,n-1) if n>1 else 0
    chunks=[str(n)]
    if n>4: chunks+=[','.join(['3']+['1']*(n-3))]
    cmd=[f'{M}/target/release/{name}','record','--ids',','.join(map(str,ids)),'-o',f'{OUT}/{name}.json']
    for c in chunks: cmd+=['--chunks',c]
    r=subprocess.run(cmd,capture_output=True,text=True)
    if r.returncode: print(name, r.stderr[:200]); continue
    shutil.copy(f'{crate}/weights.safetensors', f'{OUT}/{name}.weights')
    if not name.endswith('-f32'):
        import array
        r=subprocess.run([f'{M}/target/release/{name}','logits','--ids',','.join(map(str,ids)),'--json','--device','cpu'],capture_output=True,text=True)
        array.array('f',json.loads(r.stdout)['logits']).tofile(open(f'{OUT}/{name}.golden','wb'))
    else:
      with safe_open(f'tests/models/{model}/golden.safetensors','np') as f:
        f.get_tensor(f'last_{i}').astype('<f4').tofile(f'{OUT}/{name}.golden')
    b=2e-4 if name.endswith('-f32') else 1e-2
    models.append(dict(name=name,ptx=f'{name}.ptx',recording=f'{name}.json',weights=f'{name}.weights',golden=f'{name}.golden',bound=b))
json.dump(models,open(f'{OUT}/models.json','w'))
print(len(models))
