#!/usr/bin/env bash
# Process 1 of new mount, network, process and name namespaces: etcd, API server, controllers, scheduler, containerd,
# kubelet, kube-proxy and CoreDNS of one node. cluster.sh starts it: node.sh DIR BIN
set -euo pipefail
dir=$1 bin=$2
export KUBECONFIG=$dir/kubeconfig PATH=$bin:$PATH
ulimit -n 20000 2>/dev/null || true
hostname node1

# What a cluster left here is another cluster's. Images stay: they take minutes to unpack.
rm -rf "$dir"/{etcd,kubelet,cni,pv,varlog,sysctl,api,kubeconfig} "$dir/containerd/io.containerd.grpc.v1.cri"
mkdir -p "$dir"/{kubelet,containerd,cni,varlog,sysctl,images} "$dir"/pv/{1..8}
cd "$dir"

# Mounts: those of the network and control groups anew, and the folders that a node writes to.
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir -p "/sys/fs/cgroup/$controller"
  mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir -p /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd || true
mount -t tmpfs tmpfs /run
mkdir -p /run/{netns,lock,containerd,xtables} /var/log
mount --bind varlog /var/log
mkdir -p /var/log/pods /var/log/containers
# The kubelet writes these, which are the whole machine's: it gets files of its own to write.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
  kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
  file=sysctl/$(echo "${setting%=*}" | tr / .)
  echo "${setting#*=}" > "$file"
  mount --bind "$file" "/proc/sys/${setting%=*}"
done

# Network: the node is 10.77.0.1, pods 10.244.0.0/24, services 10.96.0.0/16. There is no way out.
ip link set lo up
ip addr add 10.96.0.10/32 dev lo
ip link add eth0 type bridge
ip addr add 10.77.0.1/24 dev eth0
ip link add eth0p type veth peer name eth0q
ip link set eth0p master eth0
ip link set eth0p up
ip link set eth0q up
ip link set eth0 up
ip route add default via 10.77.0.254 dev eth0
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true
printf '127.0.0.1 localhost\n10.77.0.1 node1\n' > hosts
mount --bind hosts /etc/hosts
echo "nameserver 10.96.0.10" > resolv.conf
mount --bind resolv.conf /etc/resolv.conf
cat > cni/10-bridge.conflist <<'C'
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/run/cni"}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
C

# containerd, first without Kubernetes' part: to drop the last cluster's containers and to take in images.
cat > containerd.toml <<C
version = 2
root = "$dir/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
C
sed 's/^disabled_plugins = \[/&"io.containerd.grpc.v1.cri", /' containerd.toml > containerd-alone.toml
await() { for _ in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 0.1; done; echo "not ready: $*" >&2; exit 1; }
store() { ctr -n k8s.io "$@"; }
containerd -c containerd-alone.toml > containerd-alone.log 2>&1 &
alone=$!
await store version
store containers ls -q | xargs -r ctr -n k8s.io containers rm
for image in images/*.tar; do
  # A tar is taken in once: its name and the second of its making are noted beside the store.
  note=containerd/taken-in-$(basename "$image")
  made=$(stat -c %Y "$image")
  [ "$(cat "$note" 2>/dev/null)" = "$made" ] && continue
  echo "taking in $image"
  store images import "$image"
  echo "$made" > "$note"
done
kill "$alone"
wait "$alone" || true
containerd -c containerd.toml > containerd.log 2>&1 &

# One authority for the API server, the kubelet and the API server's own clients; a token for whoever administers.
mkdir api
openssl req -x509 -newkey rsa:2048 -nodes -keyout api/ca.key -out api/ca.crt -days 2 -subj /CN=ca 2>/dev/null
certificate() {  # NAME SUBJECT EXTENSION
  openssl req -newkey rsa:2048 -nodes -keyout "api/$1.key" -out "api/$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "api/$1.csr" -CA api/ca.crt -CAkey api/ca.key -CAcreateserial -out "api/$1.crt" -days 2 \
    -extfile <(echo "$3") 2>/dev/null
}
cluster=kubernetes.default.svc
certificate server /CN=kube-apiserver "subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:$cluster,DNS:$cluster.cluster.local,DNS:localhost,IP:127.0.0.1,IP:10.96.0.1,IP:10.77.0.1"
certificate kubelet /CN=node1 "subjectAltName=DNS:node1,IP:10.77.0.1"
certificate to-kubelet "/O=system:masters/CN=apiserver-kubelet-client" "extendedKeyUsage=clientAuth"
certificate aggregator /CN=aggregator "extendedKeyUsage=clientAuth"  # by which the API server asks servers of other groups
openssl genrsa -out api/accounts.key 2048 2>/dev/null
openssl rsa -in api/accounts.key -pubout -out api/accounts.pub 2>/dev/null
token=$(openssl rand -hex 16)
echo "$token,admin,admin,\"system:masters\"" > api/tokens.csv
cat > kubeconfig <<K
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://10.77.0.1:6443", certificate-authority: "$dir/api/ca.crt"}}]
users: [{name: u, user: {token: "$token"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
K
chmod 600 kubeconfig

etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
  --advertise-client-urls http://127.0.0.1:2379 > etcd.log 2>&1 &
kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address=10.77.0.1 --secure-port=6443 \
  --tls-cert-file=api/server.crt --tls-private-key-file=api/server.key --client-ca-file=api/ca.crt \
  --token-auth-file=api/tokens.csv --authorization-mode=Node,RBAC --allow-privileged=true --service-cluster-ip-range=10.96.0.0/16 \
  --service-account-key-file=api/accounts.pub --service-account-signing-key-file=api/accounts.key \
  --service-account-issuer=https://kubernetes.default.svc \
  --kubelet-client-certificate=api/to-kubelet.crt --kubelet-client-key=api/to-kubelet.key \
  --requestheader-client-ca-file=api/ca.crt --requestheader-allowed-names=aggregator --requestheader-username-headers=X-Remote-User \
  --requestheader-group-headers=X-Remote-Group --requestheader-extra-headers-prefix=X-Remote-Extra- \
  --proxy-client-cert-file=api/aggregator.crt --proxy-client-key-file=api/aggregator.key \
  --kubelet-certificate-authority=api/ca.crt --kubelet-preferred-address-types=InternalIP \
  > apiserver.log 2>&1 &
await kubectl get --raw /readyz
kube-controller-manager --kubeconfig=kubeconfig --authentication-kubeconfig=kubeconfig --authorization-kubeconfig=kubeconfig \
  --leader-elect=false --service-account-private-key-file=api/accounts.key --root-ca-file=api/ca.crt \
  --cluster-signing-cert-file=api/ca.crt --cluster-signing-key-file=api/ca.key > controllers.log 2>&1 &
kube-scheduler --kubeconfig=kubeconfig --leader-elect=false > scheduler.log 2>&1 &

cat > kubelet.yaml <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/api/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $dir/api/kubelet.crt
tlsPrivateKeyFile: $dir/api/kubelet.key
cgroupDriver: cgroupfs
cgroupRoot: /
failSwapOn: false
oomScoreAdj: 0
maxOpenFiles: 20000
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: $dir/resolv.conf
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 2s
K
await ctr version
kubelet --config=kubelet.yaml --kubeconfig=kubeconfig --root-dir="$dir/kubelet" --hostname-override=node1 \
  --node-ip=10.77.0.1 > kubelet.log 2>&1 &
cat > proxy.yaml <<K
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16
clientConnection: {kubeconfig: $dir/kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
K
kube-proxy --config=proxy.yaml --hostname-override=node1 > proxy.log 2>&1 &
printf '.:53 {\n bind 10.96.0.10\n errors\n kubernetes cluster.local {\n  kubeconfig %s c\n }\n cache 5\n}\n' "$dir/kubeconfig" > Corefile
coredns -conf Corefile > coredns.log 2>&1 &

# Volumes of the node's own disk, since fsGroup is applied to them and not to hostPath.
for i in pv/*; do
  cat <<K
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: $(echo "$i" | tr -d /)}
spec:
  capacity: {storage: 100Gi}
  accessModes: [ReadWriteOnce, ReadWriteMany]
  storageClassName: local
  persistentVolumeReclaimPolicy: Retain
  local: {path: $dir/$i}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]}]}}
K
done > base.yaml
cat >> base.yaml <<'K'
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
K
await kubectl apply -f base.yaml
touch started
wait
