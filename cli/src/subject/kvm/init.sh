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

# Devices are the host's. What is on a disk is not to be kept in its memory; a network is bridged to the guest's.
devices=
if [ -f /kvm/drivers ]; then
    for driver in $(busybox cat /kvm/drivers); do
        busybox insmod "$driver" || give_up "the host's kernel does not take its module $driver"
    done
    devices="-global virtio-mmio.force-legacy=false"
fi
if [ -b /dev/vda ]; then
    devices="$devices -drive file=/dev/vda,if=none,id=disk,format=raw,cache=none -device virtio-blk-device,drive=disk"
fi
if [ -d /sys/class/net/eth0 ]; then
    # The guest has another address on the Ethernet than the host.
    busybox brctl addbr br0 && busybox brctl addif br0 eth0 || give_up "the host has no bridge"
    busybox ifconfig eth0 up && busybox ifconfig br0 up
    devices="$devices -netdev tap,id=net,script=/kvm/bridge,downscript=no -device virtio-net-device,netdev=net,mac=52:54:00:67:6e:01"
fi

# The guest's console is the machine's, as it is: its line ends are its own, and so is what is typed.
busybox stty raw -echo
# RAM is anonymous memory, so that huge pages can be had; no device but those that the board always has, and such as the host has.
initrd=
[ ! -f /kvm/initrd ] || initrd="-initrd /kvm/initrd"
qemu-system-riscv64 -accel kvm -cpu host -machine virt -smp "$(busybox cat /kvm/vcpus)" -m "$(busybox cat /kvm/memory)" \
    -no-user-config -nodefaults -display none -no-reboot -chardev stdio,id=con,signal=off -serial chardev:con \
    $devices -kernel /kvm/kernel $initrd -append "$(busybox cat /kvm/append)" || give_up "the VMM ended with status $?"
busybox stty sane
busybox poweroff -f
