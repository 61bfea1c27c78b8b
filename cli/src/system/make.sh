# Makes a Debian root, in Gnomon's default guest. In front of this stand: now, release, essential, packages, mirror, suite, proxies.
# The disks are the root's, a tar archive of what is in it before any package is installed, and one of the packages.
set -e
date -s "@$now" > /dev/null
# The file of the disk is sparse: what was not written is zero already.
/root/ld-linux-riscv64-lp64d.so.1 --library-path /root /root/mke2fs -q -t ext4 -L debian \
    -E nodiscard,lazy_itable_init=1,assume_storage_prezeroed=1 /dev/vda
# An image that is not whole is thrown away: nothing needs to be on the host's disk before the end.
mount -t ext4 -o noatime,barrier=0,commit=300 /dev/vda /mnt
tar x -f /dev/vdb -C /mnt
mkdir /mnt/packages
mount -t tmpfs -o size=90% packages /mnt/packages
tar x -f /dev/vdc -C /mnt/packages
mount -t proc proc /mnt/proc
mount -t sysfs sys /mnt/sys
mount -o bind /dev /mnt/dev
mount -t devpts devpts /mnt/dev/pts
put() { mkdir -p "${1%/*}"; cat > "$1"; }
put /mnt/etc/ssh/sshd_config.d/gnomon.conf << END
# One key of a kind that is soon made.
HostKey /etc/ssh/ssh_host_ed25519_key
# Those of whoever starts the VM are in the second file, at each start.
AuthorizedKeysFile .ssh/authorized_keys /run/gnomon/authorized_keys
END
# Nothing is to be started here. By this, Debian's packages ask.
printf '#!/bin/sh\nexit 101\n' > /mnt/usr/sbin/policy-rc.d
chmod 755 /mnt/usr/sbin/policy-rc.d

cat > /mnt/packages/install.sh <<'END'
set -e
export PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive DEBCONF_NONINTERACTIVE_SEEN=true
cd /packages
names() { for name; do echo "$name.deb"; done; }
# Nobody has configured what these need first, as long as they are not there themselves.
unpack() { dpkg --force-depends --force-unsafe-io --unpack $(names "$@"); }
unpack $essential
dpkg --force-depends --force-unsafe-io --configure -a
unpack $packages
depmod "$release" &
dpkg --force-unsafe-io --configure -a
wait $!
test -z "$(dpkg --audit)"
# As apt sees it, too. It keeps what it has read.
apt-get -q check

passwd -q -d root
useradd --create-home --shell /bin/bash --groups sudo gnomon
passwd -q -d gnomon
systemctl -q disable apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer
systemctl -q disable e2scrub_reap.service
END
export release essential packages
chroot /mnt /bin/sh /packages/install.sh

cd /mnt
rm -f usr/sbin/policy-rc.d etc/ssh/ssh_host_*
# These are each VM's own.
rm -f etc/hostname
: > etc/machine-id
put etc/fstab << END
/dev/vda / ext4 rw,errors=remount-ro 0 0
END
put etc/locale.conf << END
LANG=C.UTF-8
END
ln -sf ../locale.conf etc/default/locale
put etc/hosts << END
127.0.0.1 localhost
::1 localhost ip6-localhost ip6-loopback
END
# The first process of each start writes it: see init-root.sh.
ln -sf /run/gnomon/resolv.conf etc/resolv.conf
# The network card is called eth0, as it is before there is a root.
mkdir -p etc/systemd/network
ln -s /dev/null etc/systemd/network/99-default.link
put etc/sudoers.d/gnomon << END
gnomon ALL=(ALL:ALL) NOPASSWD: ALL
END
chmod 440 etc/sudoers.d/gnomon
put etc/issue.d/gnomon.issue << END
root and gnomon log in without a password. \`poweroff\` ends the VM.

END
put etc/systemd/system/sshd-keygen.service.d/gnomon.conf << END
[Unit]
ConditionFirstBoot=
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
[Service]
ExecStart=
ExecStart=ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key
END
rm -f etc/apt/sources.list
put etc/apt/sources.list.d/debian.sources << END
Types: deb
URIs: $mirror
Suites: $suite
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
[ -z "$proxies" ] || echo "$proxies" > etc/apt/apt.conf.d/90gnomon
cd /
umount /mnt/packages
rmdir /mnt/packages
umount /mnt/dev/pts /mnt/dev /mnt/sys /mnt/proc
umount /mnt
