# Builds KVM's selftests, in a guest of Gnomon's own, which must not be silent for long. In front of this stands: programs. The tools, the headers
# and the sources are in /root/build; the programs go to the share.
set -e
cd /root/build
for library in lib/*; do
    ln -s "/root/build/$library" /lib/
done
export PATH=/root/build/bin:$PATH BUILD=/root/build
cd tools/testing/selftests/kvm

# compile FILE [OPTION...]: makes FILE.o of FILE.c, or of the assembly FILE.S. The options are those of the Makefile, with -O1, which
# takes less time.
cat > /bin/compile <<'END'
set -e
name=$1
shift
echo $name
set -- "$@" -quiet -march=rv64gc -mabi=lp64d -nostdinc -isystem $BUILD/usr/lib/gcc/riscv64-linux-gnu/14/include \
    -O1 -std=gnu99 -D_GNU_SOURCE= -DCONFIG_64BIT -U_FORTIFY_SOURCE -fno-stack-protector -fno-pie -fno-strict-aliasing \
    -fno-builtin-memcmp -fno-builtin-memcpy -fno-builtin-memset -fno-builtin-strnlen \
    -I$BUILD/tools/include -I$BUILD/tools/arch/riscv/include -Iinclude -Iinclude/riscv -I${name%/*} -I. -I../rseq -I.. \
    -isystem $BUILD/usr/include/riscv64-linux-gnu -isystem $BUILD/usr/lib/linux/uapi/riscv -isystem $BUILD/usr/include
if [ -f $name.S ]; then
    cc1 -E -lang-asm -D__ASSEMBLER__ "$@" $name.S -o $name.s
else
    cc1 "$@" $name.c -o $name.s
fi
riscv64-linux-gnu-as -march=rv64gc $name.s -o $name.o
END
chmod 755 /bin/compile

# Two parts of some tests, one of them for this architecture, are one program.
parts() {
    for part in $1 riscv/$1; do
        [ ! -f $part.c ] || echo $part
    done
}
library=$(ls lib/*.c lib/riscv/*.[cS] | sed 's/[.][cS]$//' | grep -v lib/string_override)
sh /bin/compile lib/string_override -ffreestanding
for file in $library $(for program in $programs; do parts $program; done); do
    echo $file
done | xargs -P 2 -n 1 sh /bin/compile

libc=/root/build/usr/lib/riscv64-linux-gnu
libgcc=/root/build/usr/lib/gcc/riscv64-linux-gnu/14
objects=$(for file in $library lib/string_override; do echo $file.o; done)
for program in $programs; do
    echo $program
    riscv64-linux-gnu-ld.bfd -static -o /mnt/share/$program $libc/crt1.o $libc/crti.o $libgcc/crtbeginT.o \
        $(parts $program | sed 's/$/.o/') $objects --start-group $libc/libc.a $libgcc/libgcc.a $libgcc/libgcc_eh.a --end-group \
        $libgcc/crtend.o $libc/crtn.o
done
