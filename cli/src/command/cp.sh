# What gnomon cp does in a guest, by tools that busybox has as well. Its arguments are a task and its operands.
fail() { echo "$1" >&2; exit 1; }

# cat PATH: writes a file's content.
task_cat() {
    [ -e "$1" ] || fail "$1: there is no such file"
    [ ! -d "$1" ] || fail "$1: it is a directory"
    exec cat -- "$1"
}

# get DIRECTORY NAME RECURSIVE: writes an archive of the file called NAME there, or of all in the directory of that name. A link is followed.
task_get() {
    cd -- "$1" 2> /dev/null || fail "$1: there is no such directory"
    [ -e "./$2" ] || fail "${1%/}/$2: there is no such file"
    if [ -d "./$2" ]; then
        [ -n "$3" ] || fail "${1%/}/$2: it is a directory (copy it with -r)"
        cd -- "./$2" || exit 1
        exec tar -c -f - .
    fi
    [ -f "./$2" ] || fail "${1%/}/$2: it is neither a file nor a directory"
    exec tar -c -h -f - "./$2"
}

# merge FROM TO: moves what is in a directory to another one. Each file is replaced at once.
merge() (
    for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        [ -e "$entry" ] || [ -L "$entry" ] || continue
        to=$2/${entry##*/}
        if [ -d "$entry" ] && [ ! -L "$entry" ] && [ -d "$to" ] && [ ! -L "$to" ]; then
            merge "$entry" "$to" || exit 1
        else
            mv -f -T -- "$entry" "$to" || exit 1
        fi
    done
)

# put TO NAME KIND: reads what is to be TO, or TO/NAME if TO is a directory. KIND is `tar`, an archive of `x`, or `bytes`, a file's content.
task_put() {
    to=$1
    [ ! -d "$to" ] || to=${to%/}/$2
    # A link to a file stays.
    if [ -L "$to" ] && [ -f "$to" ]; then to=$(readlink -f -- "$to"); fi
    case $to in */*) parent=${to%/*}/ ;; *) parent=./ to=./$to ;; esac
    [ -d "$parent" ] || fail "$parent: there is no such directory"
    scratch=$(mktemp -d "${parent}.gnomon-cp-XXXXXX") || exit 1
    trap 'rm -rf -- "$scratch"' EXIT
    trap 'exit 1' HUP INT TERM
    if [ "$3" = tar ]; then
        tar -x -p -o -f - -C "$scratch" || fail "the archive could not be unpacked"
    else
        cat > "$scratch/x" || fail "it could not be written"
    fi
    if [ -d "$scratch/x" ] && [ -d "$to" ]; then
        merge "$scratch/x" "$to" || exit 1
    else
        [ ! -d "$to" ] || fail "$to: it is a directory"
        [ ! -d "$scratch/x" ] || [ ! -e "$to" ] || fail "$to: it is not a directory"
        mv -f -T -- "$scratch/x" "$to" || exit 1
    fi
}

task=$1
shift
"task_$task" "$@"
