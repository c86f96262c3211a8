"""Machines under qemu, for scripts/virtual-hosts: an image of Debian that is made once, and machines that boot from it on a network of this process's own.

The network is a namespace that this process has entered, and each machine dies with it, so nothing is left however it ends. Machines write into a copy of
the image that has no name. They see the folder of the programs, read-only, as /programs.
"""
import ctypes, hashlib, os, re, shutil, signal, subprocess, time
from pathlib import Path

SUITE = "trixie"
PACKAGES = (
    "udev,openssh-server,hostname,iproute2,iputils-ping,kmod,procps,zstd,linux-image-amd64,initramfs-tools,"
    "rdma-core,ibverbs-providers,ibverbs-utils,libucx0,ucx-utils"
)
NAMES = "abc"
NETWORK = "10.79.0."
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs", "ip": "iproute2",
    "ssh": "openssh-client", "ssh-keygen": "openssh-client", "setpriv": "util-linux", "mount": "mount",
}
MEMORY = 1024  # MiB a machine
CPUS = {"kvm": "max", "tcg": "Nehalem"}  # emulated, wide vectors are slower than narrow ones
KVM_LIMIT = 15  # seconds until a kernel writes its first line
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
# The first process of a machine. With systemd, an emulated machine takes minutes to start.
INIT = """#!/bin/sh
for word in $(cat /proc/cmdline); do
    case $word in name=*) name=${word#name=};; address=*) address=${word#address=};; esac
done
hostname "$name"
# As Debian's installer writes it: a machine's own name has a loopback address, which no other machine reaches.
sed -i "1i 127.0.1.1 $name" /etc/hosts
mkdir -p /dev/shm /dev/pts /run/sshd
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
modprobe -a virtio_net 9pnet_virtio
ip link set lo up
ip addr add "$address/24" dev eth0
ip link set eth0 up
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 programs /programs
/usr/sbin/sshd -D &
while :; do wait; sleep 1; done
"""
# As at the end of any system: all are asked to end, then killed, and then the machine is off.
SHUT_DOWN = """#!/bin/sh
trap '' TERM HUP
kill -TERM -1
sleep 2
echo o >/proc/sysrq-trigger
"""
FILES = {
    "etc/hosts": "127.0.0.1 localhost\n" + "".join(f"{NETWORK}{i} {name}\n" for i, name in enumerate(NAMES, 1)),
    # A small first file system is read far sooner.
    "etc/initramfs-tools/conf.d/few": "MODULES=list\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    "usr/sbin/first": INIT,
    "usr/sbin/shut-down": SHUT_DOWN,
}


class NotHere(Exception):
    """Something that this system or its kernel does not have: which, and how far it came."""


def run(*command, **how):
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, **how)
    if done.returncode != 0:
        text = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise NotHere(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{text}")
    return done.stdout


def enter(flag):
    """A namespace of this process's own: what is mounted, or which network devices there are, ends with it."""
    if ctypes.CDLL(None, use_errno=True).unshare(flag) != 0:
        raise NotHere(f"a namespace of its own can't be had: {os.strerror(ctypes.get_errno())}")


def mirror():
    """Where this system's own packages come from, if it is a Debian."""
    sources = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    words = [word for path in sources for line in path.read_text().splitlines() if not line.startswith("#") for word in line.split()]
    own = [word for word in words if word.startswith("http") and word.rstrip("/").endswith("/debian")]
    return os.environ.get("MIRROR") or (own[0] if own else "http://deb.debian.org/debian")


def image(cache):
    """The folder with `root.ext4`, `kernel`, `initrd` and `key`, which is made if it is not there."""
    recipe = repr((SUITE, PACKAGES, FILES, Path(__file__).read_text().split("def make")[1].split("def ")[0]))
    folder = cache / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    if not folder.exists():
        print(f"making the image of {SUITE} from {mirror()}, once: minutes, 2 GB in {cache}", flush=True)
        shutil.rmtree(cache, ignore_errors=True)  # images of former recipes
        building = cache / "building"
        building.mkdir(parents=True)
        try:
            make(building)
            building.rename(folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


def make(folder):
    root = folder / "root"
    run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, mirror())
    for path, text in FILES.items():
        (root / path).write_text(text)
    for name in ("first", "shut-down"):
        (root / "usr/sbin" / name).chmod(0o755)
    (root / "programs").mkdir()
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "virtual-hosts", "-f", folder / "key")
    shutil.copy(folder / "key", root / "root/.ssh/id_ed25519")
    shutil.copy(folder / "key.pub", root / "root/.ssh/authorized_keys")
    # All machines are of one image, and so have one key.
    known = f"* {(root / 'etc/ssh/ssh_host_ed25519_key.pub').read_text()}"
    for path in (root / "root/.ssh/known_hosts", folder / "known_hosts"):
        path.write_text(known)
    run("chroot", root, "update-initramfs", "-u", "-k", "all")
    for name, to in (("vmlinuz-*", "kernel"), ("initrd.img-*", "initrd")):
        shutil.copy(next((root / "boot").glob(name)), folder / to)
    shutil.rmtree(root / "var/cache/apt")
    run("mke2fs", "-q", "-t", "ext4", "-d", root, folder / "root.ext4", "3G")
    shutil.rmtree(root)


def lay_cables(names):
    """A bridge and a tap for each machine, in this process's own namespace; this process has an address on it."""
    enter(CLONE_NEWNET)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "hub", "type", "bridge")
    run("ip", "addr", "add", f"{NETWORK}254/24", "dev", "hub")
    run("ip", "link", "set", "hub", "up")
    for name in names:
        run("ip", "tuntap", "add", "dev", f"to-{name}", "mode", "tap")
        run("ip", "link", "set", "dev", f"to-{name}", "master", "hub", "up")


def qemu(accelerator, folder, console, kernel_args):
    """The command of a machine that ends with this process, and writes its console into a file."""
    return [
        "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", "-nodefaults", "-display", "none", "-no-reboot", "-smp", 1, "-m", MEMORY,
        "-machine", f"q35,accel={accelerator}", "-cpu", CPUS[accelerator], "-serial", f"file:{console}",
        "-kernel", folder / "kernel", "-initrd", folder / "initrd", "-append", f"root=/dev/vda rw console=ttyS0 net.ifnames=0 {kernel_args}",
    ]


def accelerator(folder, logs):
    """`kvm` where a kernel boots with it, which a /dev/kvm that can be opened does not promise: some only run kernels that were made for them."""
    if not os.access("/dev/kvm", os.W_OK):
        print("there is no /dev/kvm: the machines are emulated, and slow")
        return "tcg"
    console, errors = logs / "kvm.console", logs / "kvm.qemu"
    with errors.open("w") as out:
        tried = start(qemu("kvm", folder, console, ""), out)
    until = time.monotonic() + KVM_LIMIT
    while tried.poll() is None and time.monotonic() < until:
        if console.exists() and "Linux version" in console.read_text(errors="replace"):
            tried.kill()
            tried.wait()
            return "kvm"
        time.sleep(0.1)
    tried.kill()
    tried.wait()
    said = [line for line in errors.read_text().splitlines() if re.search("rror|fail", line)]
    print(f"/dev/kvm is there, but no kernel wrote a line within {KVM_LIMIT} s ({'; '.join(said[:1])}): the machines are emulated, and slow")
    return "tcg"


def start(command, out):
    # A session of its own: Ctrl-C is for this process, which ends the machines, and a kernel that shares time among sessions counts each machine.
    return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


class Machine:
    """A machine, which `boot` starts."""

    def __init__(self, name, folder, programs, accelerator, logs):
        self.name, self.folder, self.programs, self.accelerator = name, folder, programs, accelerator
        self.number = NAMES.index(name) + 1
        self.address = f"{NETWORK}{self.number}"
        self.console = logs / f"{name}.console"
        self.qemu = None

    def boot(self, ahead_s=0):
        """Starts it, with a clock that is so much ahead of this machine's; `wait` waits for it."""
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + ahead_s))
        kernel_args = f"quiet init=/usr/sbin/first name={self.name} address={self.address}"
        command = qemu(self.accelerator, self.folder, self.console, kernel_args) + [
            "-name", self.name, "-rtc", f"base={clock}", "-device", "virtio-rng-pci",
            "-drive", f"file={self.folder / 'root.ext4'},if=virtio,format=raw,snapshot=on",
            "-netdev", f"tap,id=net,ifname=to-{self.name},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:79:00:{self.number:02x}",
            "-virtfs", f"local,path={self.programs},mount_tag=programs,security_model=none,readonly=on",
        ]
        self.errors = self.console.with_suffix(".qemu")
        with self.errors.open("w") as errors:
            self.qemu = start(command, errors)

    def wait(self, limit=600):
        until = time.monotonic() + limit
        while True:
            if self.qemu.poll() is not None:
                raise NotHere(f"machine {self.name} did not boot: qemu ended with {self.qemu.returncode}: {self.errors.read_text().strip()}")
            try:
                return self.shell("test -e /programs/phalanx && cat /proc/sys/kernel/random/boot_id", limit=10).strip()
            except (NotHere, subprocess.TimeoutExpired) as error:
                if time.monotonic() > until:
                    lines = self.console.read_text(errors="replace").splitlines()[-15:]
                    raise NotHere(f"machine {self.name} did not answer within {limit} s: {error}; its console:\n" + "\n".join(lines)) from error
            time.sleep(0.5)

    def ssh(self, command):
        """The command by which it runs a command for its shell."""
        options = ["BatchMode=yes", "ConnectTimeout=5", "LogLevel=ERROR", f"UserKnownHostsFile={self.folder / 'known_hosts'}"]
        flags = [word for option in options for word in ("-o", option)]
        return ["ssh", "-F", "none", "-i", str(self.folder / "key"), *flags, f"root@{self.address}", command]

    def shell(self, command, limit=60):
        return run(*self.ssh(command), timeout=limit)

    def is_on(self):
        return self.qemu is not None and self.qemu.poll() is None

    def unplug(self):
        """As when its cable is pulled: nothing of it runs on, and nobody is told."""
        if self.is_on():
            self.qemu.send_signal(signal.SIGKILL)
        if self.qemu is not None:
            self.qemu.wait()
