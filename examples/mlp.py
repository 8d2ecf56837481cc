import gradjury, numpy as np, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.fc1=nn.Linear(1024,512); s.bn1=nn.BatchNorm1d(512); s.fc2=nn.Linear(512,256); s.bn2=nn.BatchNorm1d(256); s.fc3=nn.Linear(256,10); s.saved={}
    def dropout_layer(s,x,p):
        mask=(torch.rand_like(x)>p).float(); return x*mask/(1-p), mask
    def forward(s,x):
        k=s.saved
        k['fc1']=s.fc1(x); k['bn1']=s.bn1(k['fc1']); k['relu1']=F.relu(k['bn1']); k['drop1'],k['mask1']=s.dropout_layer(k['relu1'],0.4)
        k['fc2']=s.fc2(k['drop1']); k['bn2']=s.bn2(k['fc2']); k['relu2']=F.relu(k['bn2']); k['drop2'],k['mask2']=s.dropout_layer(k['relu2'],0.4)
        for n in ('fc1','bn1','fc2'): k[n].register_hook(lambda g: None)
        k['fc3']=s.fc3(k['drop2']); return F.log_softmax(k['fc3'],-1)
net=Net(); x=torch.randn(64,1024); target=torch.randint(0,10,(64,))
with gradjury.record(net) as run:
    loss=F.nll_loss(net(x),target); loss.backward()
s={k:v.detach().numpy() for k,v in net.saved.items()}; P={k:v.detach().numpy() for k,v in net.named_parameters()}
dz=np.exp(s['fc3']); dz/=dz.sum(1,keepdims=True); dz[range(64),target.numpy()]-=1; dz/=64
g={'fc3.weight':dz.T@s['drop2'],'fc3.bias':dz.sum(0,keepdims=True)}
def bn(dout,x,gamma,eps=1e-5):
    N=x.shape[0]; xm=x-x.mean(0); sd=np.sqrt(x.var(0)+eps); xh=xm/sd
    dxh=dout*gamma; dx=(dxh-dxh.mean(0)-xh*(dxh*xh).mean(0))/sd
    return dx,(dout*xh).sum(0),dout.sum(0)
d=dz@P['fc3.weight']
for i,inp in ((2,s['drop1']),(1,x.numpy())):
    d=d*(s[f'mask{i}']/np.float32(0.6))*(s[f'bn{i}']>0)
    d,g[f'bn{i}.weight'],g[f'bn{i}.bias']=bn(d,s[f'fc{i}'],P[f'bn{i}.weight'])
    g[f'fc{i}.weight']=d.T@inp; g[f'fc{i}.bias']=d.sum(0,keepdims=True); d=d@P[f'fc{i}.weight']
run.check(g).show()
