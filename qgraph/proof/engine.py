"""stopgap"""
from dataclasses import dataclass
import numpy as np
from qgraph.proof.expression import evaluate
from qgraph.exactness import Witness
@dataclass
class Finding:
    differing:int=0; zero_sign:int=0; nan_differs:bool=False; infinity_differs:bool=False; undecided:object=None; witness:object=None
def decide(a,b,input_shape=None):
    rng=np.random.default_rng(0)
    x=np.concatenate([rng.normal(size=4000)*10, np.arange(-2000,2000)*0.05,np.arange(-2000,2000)*0.125, [0.0,-0.0,np.inf,-np.inf]]).astype(np.float32)
    x=np.concatenate([x,np.nextafter(x,np.float32(99999)),np.nextafter(x,np.float32(-99999))])
    n=max(len(np.shape(evaluate(a,x[:1].reshape(1)))),1)
    x=x.reshape(-1,*([1]*(n-1))) if n>1 else x
    xx=x.reshape(x.shape[0],*([1]*4)) 
    f,g=np.broadcast_arrays(evaluate(a,xx),evaluate(b,xx))
    bad=~((f==g)|(np.isnan(f)&np.isnan(g)))
    w=None
    if bad.any():
        i=np.argwhere(bad)[0]; w=Witness(float(xx[i[0],0,0,0,0]),float(f[tuple(i)]),float(g[tuple(i)]))
    return Finding(int(bad.sum()),int((~bad&(np.signbit(f)!=np.signbit(g))).sum()),witness=w)
