# Makes a disk image as a distribution's is, in Gnomon's default guest. In front of this stand: loader, release, append.
# Its disk is the image. What goes onto it is beside this, with the tools and their libraries.
set -e
cd /root
uuid=67b4279f-e928-4db7-b290-48c57a75a274
# tool FILE NAME ARGUMENT...: what Debian has built runs by the libraries that were brought.
tool() {
    file=$1 name=$2
    shift 2
    ./ld-linux-riscv64-lp64d.so.1 --library-path /root --argv0 "$name" "./$file" "$@"
}
# Debian's layout: the EFI system partition is the first on the disk, and the last in the table.
case $loader in
extlinux) tool sfdisk sfdisk -q /dev/vda ;;
*) { cat; echo "/dev/vda15: start=2048, size=131072, type=U, name=ESP"; } | tool sfdisk sfdisk -q /dev/vda ;;
esac << END
label: gpt
/dev/vda1: start=133120, type=L, name=root
END

mkdir -p tree/boot tree/bin tree/sbin tree/etc tree/dev tree/proc tree/sys tree/root
cp /bin/busybox tree/bin/
for name in cat getty hostname init login ls mount nproc poweroff reboot sh uname; do
    ln -s busybox tree/bin/$name
done
ln -s ../bin/busybox tree/sbin/init
echo disk > tree/etc/hostname
echo 'root::0:0:root:/root:/bin/sh' > tree/etc/passwd
echo 'export PATH=/bin PS1="disk# "' > tree/etc/profile
cat > tree/etc/inittab << END
::sysinit:/bin/mount -t proc proc /proc
::sysinit:/bin/mount -t sysfs sys /sys
::sysinit:/bin/mount -o remount,rw /
::sysinit:/bin/hostname -F /etc/hostname
ttyS0::respawn:/bin/getty -L ttyS0 115200 vt100
END

# Names are in ASCII: for others, mtools would need what the C library has in files.
echo default_codepage=367 > mtoolsrc
export MTOOLSRC=/root/mtoolsrc
esp() {
    mkdosfs -n ESP /dev/vda15
    tool mtools mmd -i /dev/vda15 ::/EFI ::/EFI/BOOT "$@"
}
put() { tool mtools mcopy -i /dev/vda15 "$1" "::$2"; }
kernel=vmlinux-$release initrd=initrd.img-$release
words="root=UUID=$uuid ro $append"
[ "$loader" = systemd-boot ] || mv vmlinux tree/boot/$kernel
[ "$loader" = systemd-boot ] || mv initrd.img tree/boot/$initrd
case $loader in
grub)
    esp ::/EFI/debian
    put grubriscv64.efi /EFI/BOOT/BOOTRISCV64.EFI
    cat > grub.cfg << END
search.fs_uuid $uuid root
set prefix=(\$root)'/boot/grub'
configfile \$prefix/grub.cfg
END
    put grub.cfg /EFI/debian/grub.cfg
    mkdir tree/boot/grub
    cat > tree/boot/grub/grub.cfg << END
set timeout=0
menuentry 'Debian' {
    search --no-floppy --fs-uuid --set=root $uuid
    linux /boot/$kernel $words
    initrd /boot/$initrd
}
END
    ;;
systemd-boot)
    esp ::/loader ::/loader/entries
    put systemd-bootriscv64.efi /EFI/BOOT/BOOTRISCV64.EFI
    put vmlinux /$kernel
    put initrd.img /$initrd
    printf 'timeout 0\n' > loader.conf
    put loader.conf /loader/loader.conf
    printf 'title Debian\nlinux /%s\ninitrd /%s\noptions %s\n' $kernel $initrd "$words" > debian.conf
    put debian.conf /loader/entries/debian.conf
    ;;
extlinux)
    mkdir tree/boot/extlinux
    cat > tree/boot/extlinux/extlinux.conf << END
default debian
timeout 1
label debian
    linux ../$kernel
    initrd ../$initrd
    append $words
END
    ;;
esac
tool mke2fs mke2fs -q -t ext4 -U $uuid -L root -E nodiscard,assume_storage_prezeroed=1 -d tree /dev/vda1
