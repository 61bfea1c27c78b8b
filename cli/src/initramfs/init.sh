#!/bin/busybox sh
# The first process of Gnomon's default guest.
export PATH=/bin HOME=/root TERM=linux
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts
if [ -n "$ip" ]; then
    # Linux's own `ip=`, which its kernel leaves to us: the address, a gateway, the mask, the device, and a name server are in it.
    IFS=:
    set -- $ip
    unset IFS ip
    ifconfig lo up
    ifconfig "$6" "$1" netmask "$4" up && route add default gw "$3"
    echo "nameserver $8" > /etc/resolv.conf
    set --
fi
# Folders of the host: each tells its name.
for tag in /sys/bus/virtio/drivers/9pnet_virtio/virtio*/mount_tag; do
    [ -e "$tag" ] || break
    name=$(tr -d '\0' < "$tag")
    mkdir -p "/mnt/$name" && mount -t 9p -o trans=virtio,version=9p2000.L "$name" "/mnt/$name"
done
cd /root

if [ -f /exec.sh ]; then
    # Kernel messages would end up between the commands' output.
    dmesg -n 1
    echo "gnomon-exec: begin"
    sh /exec.sh </dev/null
    status=$?
    # The line break before the marker is not the commands' own: whoever reads this drops it.
    echo
    echo "gnomon-exec: end $status"
    # Setting the terminal waits until everything is sent.
    stty sane
    poweroff -f
fi

echo "Linux $(uname -r), $(nproc) CPU, $(free -m | awk '/^Mem:/ { print $2 }') MiB. exit or Ctrl-D powers off."
# The kernel passes on what it does not know. Programs are to ask the terminal, whose size may change.
[ -z "$COLUMNS" ] || stty rows "$LINES" cols "$COLUMNS"
unset LINES COLUMNS
setsid cttyhack sh -l
stty sane
poweroff -f
