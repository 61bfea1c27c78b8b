#!/bin/busybox sh
# The first process of a VM with a Debian root, which is on its first disk.
export PATH=/bin HOME=/root TERM=linux
. /etc/gnomon.sh
console
fail() {
    # `gnomon run` ends a VM that says this. Linux would panic if its first process ended.
    echo "gnomon: cannot start: $1"
    stty sane
    while :; do sleep 1000; done
}
# Guests have no clock of their own that knows the day.
date -s "@$(($(cat /etc/now) + $(cut -d. -f1 /proc/uptime)))" > /dev/null
mount -t ext4 -o noatime /dev/vda /mnt || fail "the first disk has no root that can be mounted"
[ -x /mnt/usr/lib/systemd/systemd ] || fail "the first disk has no Debian on it"
[ -d "/mnt/usr/lib/modules/$(uname -r)" ] ||
    echo "gnomon: the root has no modules of this kernel, $(uname -r): a new one would have (remove its file to begin afresh)"
shares /mnt/mnt
ports
mount -t tmpfs -o mode=755,nosuid,nodev run /mnt/run
mkdir -p /mnt/run/gnomon/bin
network /mnt/run/gnomon/resolv.conf
# A root that starts for the first time takes the VM's name.
if [ ! -e /mnt/etc/hostname ]; then
    hostname > /mnt/etc/hostname
    echo "127.0.1.1 $(hostname)" >> /mnt/etc/hosts
fi
[ ! -e /etc/authorized_keys ] || cp /etc/authorized_keys /mnt/run/gnomon/
[ ! -e /bin/mark ] || cp /bin/mark /mnt/run/gnomon/bin/
for file in /root/* /root/.[!.]*; do
    [ ! -e "$file" ] || cp -a "$file" /mnt/root/
done

if [ -f /exec.sh ]; then
    mount -o move /dev /mnt/dev
    mkdir -p /mnt/dev/shm
    mount -t tmpfs -o mode=1777,nosuid,nodev shm /mnt/dev/shm
    mount -t proc proc /mnt/proc
    mount -t sysfs sys /mnt/sys
    mount -t tmpfs -o mode=1777,nosuid,nodev tmp /mnt/tmp
    # Without a line of its own, so that messages name the commands' lines.
    { echo -n "cd /root; "; cat /exec.sh; } > /mnt/run/gnomon/exec.sh
    # The console is a terminal, but it is not interactive.
    echo 'quiet "1";' > /mnt/run/gnomon/apt.conf
    # The kernel asks for modules where its first process is, which is outside of the root.
    printf '#!/bin/sh\nexec chroot /mnt /sbin/modprobe "$@"\n' > /bin/load-module
    chmod 755 /bin/load-module
    echo /bin/load-module > /proc/sys/kernel/modprobe
    dmesg -n 1
    echo "gnomon-exec: begin"
    chroot /mnt /usr/bin/env -i PATH=/run/gnomon/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root USER=root \
        TERM=linux LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive APT_CONFIG=/run/gnomon/apt.conf \
        /bin/bash /run/gnomon/exec.sh < /mnt/dev/null
    status=$?
    # What they have left running would keep the root from being unmounted.
    kill -9 -1
    for try in 1 2 3 4 5; do
        mount -o remount,ro /mnt 2> /mnt/dev/null && break
        sleep 0.2
    done
    sync
    # As in init.sh.
    echo
    echo "gnomon-exec: end $status"
    stty sane
    poweroff -f
fi

[ -z "$COLUMNS" ] || stty rows "$LINES" cols "$COLUMNS"
for name in dev proc sys; do
    mount -o move /$name /mnt/$name
done
# Nothing of the kernel's command line is the root's.
exec env -i TERM=linux switch_root /mnt /sbin/init
