#!/bin/busybox sh
# The first process of Gnomon's default guest.
export PATH=/bin HOME=/root TERM=linux
. /etc/gnomon.sh
console
if [ -e /dev/input/event0 ]; then
    # A power key. Its first event, of 24 bytes, is that it goes down.
    { dd if=/dev/input/event0 of=/dev/null bs=24 count=1 2> /dev/null && poweroff -f; } &
fi
network /etc/resolv.conf
shares /mnt
ports
cd /root

if [ -f /exec.sh ]; then
    # Kernel messages would end up between the commands' output.
    dmesg -n 1
    echo "gnomon-exec: begin"
    sh /exec.sh </dev/null
    status=$?
    # The line break before the marker is not the commands' own: the reader of the output drops it.
    echo
    echo "gnomon-exec: end $status"
    # Setting the terminal waits until everything is sent.
    stty sane
    poweroff -f
fi

# Its first line is MemTotal, in KiB.
read -r name memory unit < /proc/meminfo
echo "Linux $(uname -r), $(nproc) CPU, $((memory / 1024)) MiB. exit or Ctrl-D powers off."
unset name memory unit
# The kernel passes on what it does not know. Programs are to ask the terminal, whose size may change.
# `gnomon shutdown` lets the carrier of the serial line go, which ends the shell if the terminal minds carriers.
stty -clocal ${COLUMNS:+rows "$LINES" cols "$COLUMNS"}
unset LINES COLUMNS
setsid cttyhack sh -l
stty sane
poweroff -f
