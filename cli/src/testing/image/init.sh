#!/bin/busybox sh
# The first process of a distribution's initrd: it finds the root, and hands over to it.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules); do
    insmod /$module
done
for word in $(cat /proc/cmdline); do
    case $word in
    root=*) root=${word#root=} ;;
    esac
done
until device=$(findfs "$root"); do
    sleep 0.1
done
mount -t ext4 -o ro "$device" /root
mount -o move /dev /root/dev
umount /sys /proc
exec switch_root /root /sbin/init
