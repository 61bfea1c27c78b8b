# What the first process of any of Gnomon's guests does, once it has read this.
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts
mount -t devpts devpts /dev/pts

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
