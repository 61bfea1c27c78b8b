# What the first process of any of Gnomon's guests does, once it has read this.
mount -t proc proc /proc
# The vkernel has none of these, and a /dev of its own.
has() { grep -qw "$1" /proc/filesystems; }
! has sysfs || mount -t sysfs sys /sys
! has devtmpfs || mount -t devtmpfs dev /dev
! has devpts || { mkdir -p /dev/pts && mount -t devpts devpts /dev/pts; }
unset -f has

# console: opens it, if it was not there when this process began, as where its driver is a module. Among ports it comes a moment after that.
console() {
    for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        # To open it and to close it again would throw away what was typed.
        [ ! -e /proc/self/fd/0 ] && [ -z "$(cat /sys/class/tty/console/active)" ] || break
        sleep 0.1
    done
    unset try
    [ -e /proc/self/fd/0 ] || exec 0<>/dev/console 1>&0 2>&0
}

# network FILE: sets the network up, if there is one, and writes FILE for those who ask for names.
network() {
    [ -n "$ip" ] || return 0
    name_servers=$1
    # Linux's own `ip=`, which its kernel leaves to us: the address, a gateway, the mask, the device, and a name server are in it.
    IFS=:
    set -- $ip
    unset IFS ip
    ifconfig lo up
    ifconfig "$6" "$1" netmask "$4" up && route add default gw "$3"
    echo "nameserver $8" > "$name_servers"
    unset name_servers
}

# shares DIRECTORY: mounts folders of the host below it. Each tells its name.
shares() {
    for tag in /sys/bus/virtio/drivers/9pnet_virtio/virtio*/mount_tag; do
        [ -e "$tag" ] || break
        name=$(tr -d '\0' < "$tag")
        mkdir -p "$1/$name" && mount -t 9p -o trans=virtio,version=9p2000.L "$name" "$1/$name"
    done
    unset tag name
}

# ports: a link by its name for each port that has one, as udev makes them. They are there a moment after their driver, all at once.
ports() {
    for features in /sys/bus/virtio/drivers/virtio_console/virtio*/features; do
        case $(cat "$features" 2> /dev/null) in ?1*) ;; *) continue ;; esac
        for try in 1 2 3 4 5 6 7 8 9 10; do
            [ ! -e /sys/class/virtio-ports/vport*p1/name ] || break
            sleep 0.1
        done
        mkdir -p /dev/virtio-ports
        for port in /sys/class/virtio-ports/vport*/name; do
            [ ! -e "$port" ] || ln -sf "../$(basename "${port%/name}")" "/dev/virtio-ports/$(cat "$port")"
        done
    done
    unset features try port
}
