#!/bin/busybox sh
# The first process of the host of a guest under KVM: starts the guest, and powers off when it has ended.
export PATH=/bin
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev

give_up() {
    echo "gnomon-kvm: $1" >&2
    # Setting the terminal waits until everything is sent.
    busybox stty sane
    busybox poweroff -f
}

busybox insmod /lib/kvm.ko.xz || give_up "the host's kernel does not take its module kvm"
thp=$(busybox cat /kvm/thp)
for switch in enabled defrag; do
    echo "$thp" >/sys/kernel/mm/transparent_hugepage/$switch || give_up "the host's kernel has no huge pages to switch"
done

# A disk is the host's, which is not to keep in memory what is on it.
disk=
for driver in /lib/disk/virtio_mmio.ko.xz /lib/disk/virtio_blk.ko.xz; do
    [ -f $driver ] || continue
    busybox insmod $driver || give_up "the host's kernel does not take its module $driver"
    disk="-drive file=/dev/vda,if=none,id=disk,format=raw,cache=none"
    disk="$disk -global virtio-mmio.force-legacy=false -device virtio-blk-device,drive=disk"
done

# The guest's console is the machine's, as it is: its line ends are its own, and so is what is typed.
busybox stty raw -echo
# RAM is anonymous memory, so that huge pages can be had; no device but those that the board always has, and the disk.
initrd=
[ ! -f /kvm/initrd ] || initrd="-initrd /kvm/initrd"
qemu-system-riscv64 -accel kvm -cpu host -machine virt -smp "$(busybox cat /kvm/vcpus)" -m "$(busybox cat /kvm/memory)" \
    -no-user-config -nodefaults -display none -no-reboot -chardev stdio,id=con,signal=off -serial chardev:con \
    $disk -kernel /kvm/kernel $initrd -append "$(busybox cat /kvm/append)" || give_up "the VMM ended with status $?"
busybox stty sane
busybox poweroff -f
