# SPDX-License-Identifier: Apache-2.0
# What the tests in virtual machines share (redis_service, devices, kernels): the options, the base
# system of this host's Debian release, the disk image, and a bounded boot by qemu whose second
# serial line is the result. Sourced by bash, by a script in tests/vm whose header is its help.
#   vm_arguments "$@"          options and what is needed; sets root, build, directory (of this run,
#                              gone at the end)
#   vm_built FILE...           these files below build/, all of Lunar built when one is not there
#   vm_guest                   a copy of the base system to put things into, with Debian 13's
#                              kernel; sets guest
#   vm_libraries FILE...       the guest gets the shared libraries that these want and it does not
#                              have (static programs want none)
#   vm_disk SIZE               makes the disk out of it
#   vm_boot MINUTES APPEND [QEMU-ARGUMENT]...   boots from the disk, shows the result; 0 when its
#                                               last line is PASS
# The guest is a q35 machine with two CPUs in two NUMA nodes of $memory_mib / 2; /dev/ttyS0 is its
# console, /dev/ttyS1 its result.
vm_name=$(basename "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build
vm_parent=/var/tmp vm_base='' vm_accelerator=tcg,thread=multi vm_machine='' vm_kernel='' \
  directory='' guest=''
# Of all the tests here, so that one --image serves them.
vm_packages=systemd-sysv,dbus,udev,kmod,procps,redis-server,libhiredis-dev,libnuma1,liburing2
vm_packages+=,initramfs-tools,zstd
# shellcheck source=tools/dev/debian_root.sh
. "$root/tools/dev/debian_root.sh"

vm_cleanup() {
  trap '' HUP INT TERM
  [ -z "$vm_machine" ] || { kill -KILL "$vm_machine" && wait; } 2>/dev/null || true
  rm -rf --one-file-system "$directory"
}

vm_arguments() {
  local need
  while [ $# -gt 0 ]; do
    case $1 in
      --build) build=$(realpath "${2:?--build DIR}"); shift ;;
      --in) vm_parent=${2:?--in DIR}; shift ;;
      --kvm) vm_accelerator=kvm ;;
      --image) vm_base=$(realpath -m "${2:?--image DIR}"); shift ;;
      -h | --help) sed -n '3,/^set -euo/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
      *) echo "tests/vm/$vm_name: unknown argument $1 (see --help)" >&2; exit 2 ;;
    esac
    shift
  done
  [ "$(id -u)" = 0 ] ||
    { echo "tests/vm/$vm_name: must run as root (debootstrap):" \
      "sudo tests/vm/$vm_name" >&2; exit 2; }
  for need in debootstrap:debootstrap qemu-system-x86_64:qemu-system-x86 mkfs.ext4:e2fsprogs; do
    command -v "${need%:*}" >/dev/null && continue
    echo "tests/vm/$vm_name: ${need%:*} is missing: apt-get install ${need#*:}" >&2
    exit 2
  done
  directory=$(mktemp -d "$vm_parent/lunar-vm-XXXXXX")
  trap vm_cleanup EXIT
  trap 'exit 129' HUP
  trap 'exit 130' INT
  trap 'exit 143' TERM
}

vm_built() {
  local file
  for file; do
    [ -e "$build/$file" ] || { "$root/tools/deps" test && "$root/tools/build" "$build"; return; }
  done
}

# The guest runs what is built here, so it is the host's release.
vm_base_system() {
  local mirror release
  # shellcheck source=/dev/null
  release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  echo "== debootstrap $release"
  mirror=$(host_mirror)
  mkdir -p "$vm_base"
  debootstrap --variant=minbase --include=ca-certificates,$vm_packages "$release" "$vm_base" \
    "${mirror:-http://deb.debian.org/debian}" >"$directory/log" 2>&1 </dev/null ||
    { tail -n 20 "$directory/log" >&2; return 1; }
  : >"$vm_base/etc/fstab"
  touch "$vm_base/complete"
}

vm_guest() {
  [ -n "$vm_base" ] || vm_base=$directory/base
  [ -e "$vm_base/complete" ] || vm_base_system
  cp -a "$vm_base" "$directory/root"
  guest=$directory/root
  vm_guest_kernel
}

vm_libraries() {
  local library
  mkdir -p "$guest/usr/local/lib"
  { ldd "$@" 2>/dev/null || true; } | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    while read -r library; do
      [ -e "$guest$library" ] || cp -L "$library" "$guest/usr/local/lib/"
    done
  ldconfig -r "$guest"
}

# Of Debian 13 also where the guest is Debian 12, whose kernel the pager refuses. The package alone,
# by apt with lists of its own. With --image it is fetched once. Sets vm_kernel.
vm_guest_kernel() {
  local release=trixie cache=$vm_base.kernels mirror archive version apt
  mirror=$(host_mirror)
  mkdir -p "$cache/$release/lists/partial" "$cache/$release/archives/partial"
  cache=$(realpath "$cache/$release")
  : >>"$cache/status"
  mirror="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]\
 ${mirror:-http://deb.debian.org/debian}"
  echo "deb $mirror $release main" >"$cache/sources.list"
  apt=(-o "Dir::State=$cache" -o "Dir::State::lists=$cache/lists"
    -o "Dir::State::status=$cache/status" -o "Dir::Cache=$cache"
    -o "Dir::Etc::sourcelist=$cache/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o APT::Sandbox::User=root)
  archive=$(compgen -G "$cache/linux-image-*.deb" | tail -n 1) || {
    apt-get "${apt[@]}" -qq update &&
      version=$(apt-cache "${apt[@]}" depends linux-image-amd64 |
        sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p') &&
      (cd "$cache" && apt-get "${apt[@]}" -qq download "$version") >"$directory/log" 2>&1 ||
      { tail -n 20 "$directory/log" >&2; return 1; }
    archive=$(compgen -G "$cache/linux-image-*.deb" | tail -n 1)
  }
  rm -rf "$directory/kernel"
  dpkg-deb -x "$archive" "$directory/kernel"
  version=$(cd "$directory/kernel/boot" && compgen -G 'vmlinuz-*')
  version=${version#vmlinuz-}
  cp -a "$directory/kernel/boot" "$guest/"
  # The package of 13 says usr/lib.
  mkdir -p "$guest/lib/modules"
  cp -a "$directory"/kernel/{,usr/}lib/modules/* "$guest/lib/modules/" 2>/dev/null || true
  rm -rf "$directory/kernel"
  # What this machine's disk needs, and no more: packing and unpacking the rest takes minutes.
  echo MODULES=list >"$guest/etc/initramfs-tools/conf.d/lunar"
  printf '%s\n' virtio_pci virtio_blk ext4 crc32c_generic >"$guest/etc/initramfs-tools/modules"
  { chroot "$guest" depmod "$version" && chroot "$guest" update-initramfs -c -k "$version"; } \
    >"$directory/log" 2>&1 ||
    { tail -n 20 "$directory/log" >&2; return 1; }
  vm_kernel=$directory/boot/vmlinuz-$version   # the guest may be gone when it boots
  mkdir -p "$directory/boot"
  cp "$guest"/boot/*"$version" "$directory/boot/"
}

vm_disk() {
  rm -f "$directory/disk"
  mkfs.ext4 -q -F -d "$guest" "$directory/disk" "$1" >/dev/null
}

vm_boot() {
  local minutes=$1 append=$2 half=$((memory_mib / 2)) waited shown
  shift 2
  : >"$directory/console"
  : >"$directory/result"
  nice -n 19 qemu-system-x86_64 -M q35 -accel "$vm_accelerator" -cpu max -smp 2,sockets=2 \
    -m "$memory_mib" \
    -nodefaults -display none -no-reboot \
    -object memory-backend-ram,id=m0,size=${half}M -object memory-backend-ram,id=m1,size=${half}M \
    -numa node,nodeid=0,cpus=0,memdev=m0 -numa node,nodeid=1,cpus=1,memdev=m1 \
    -drive "file=$directory/disk,format=raw,if=virtio,cache=unsafe,discard=unmap" \
    -serial "file:$directory/console" -serial "file:$directory/result" \
    -kernel "$vm_kernel" -initrd "${vm_kernel/vmlinuz/initrd.img}" \
    -append "root=/dev/vda rw console=ttyS0 quiet $append" \
    "$@" </dev/null >"$directory/qemu" 2>&1 &
  vm_machine=$!
  tail -n +1 -f --pid=$vm_machine "$directory/result" &
  shown=$!
  for ((waited = 0; waited < minutes * 60; ++waited)); do
    kill -0 $vm_machine 2>/dev/null || break
    sleep 1
  done
  if [ "$waited" = $((minutes * 60)) ]; then
    echo "FAIL: not done within $minutes minutes"
    kill -KILL $vm_machine
  fi
  wait $shown 2>/dev/null || true   # tail has shown the rest
  wait $vm_machine 2>/dev/null || true
  vm_machine=''
  echo "== $((SECONDS / 60)) min $((SECONDS % 60)) s"
  if ! tail -n 1 "$directory/result" | tr -d '\r' | grep -qx PASS; then
    cat "$directory/qemu" >&2
    tail -n 20 "$directory/console" >&2
    return 1
  fi
}
