# First process of the node's namespaces; $1 is the cluster's folder. All other processes end with it.
set -eu
mount --make-rprivate /
# kubelet uses the first cgroup mount that it finds.
for point in $(awk '/ - cgroup /{print $5}' /proc/self/mountinfo | grep -v '^/sys/fs/cgroup' | tac); do umount -l "$point"; done
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir "/sys/fs/cgroup/$controller"
  mount -t cgroup -o "$controller" cgroup "/sys/fs/cgroup/$controller"
done
mkdir /sys/fs/cgroup/systemd
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mkdir -p "$1"/node/{log,lib/kubelet,run/netns}
mount --bind "$1/node/log" /var/log
mount --bind "$1/node/lib" /var/lib
mount --bind /var/lib/kubelet /var/lib/kubelet
mount --make-shared /var/lib/kubelet
mount --bind "$1/node/run" /run
mount --bind /run/netns /run/netns
mount --make-shared /run/netns
ip link set lo up
ip link add node0 type bridge
ip addr add 10.88.0.1/24 dev node0
ip link set node0 up
ip route add default via 10.88.0.1 dev node0
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1 net.ipv4.conf.all.route_localnet=1
hostname test-node
touch "$1/ready"
# Containers that end become children of this process: none may remain a zombie.
exec python3 -c 'import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True: signal.pause()'
