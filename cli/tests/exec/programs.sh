# What small programs do, the same on every kernel: nothing here depends on a process's number, on time, or on a name of the machine.
set -e
exec 2>/dev/null
mkdir -p /tmp
cd /tmp
for i in $(seq 1 30); do echo line $i; done > a; wc -l a; sort -r a | head -3; md5sum a
cp a b; cmp a b && echo same
mkdir -p d/e; touch d/e/f; find d | sort; rm -r d; ls -1
ln -s a l; readlink l; cat l | tail -1; mv l m; ls -l m | cut -c1-10
dd if=/dev/zero of=z bs=64k count=16 2>/dev/null; stat -c %s z; gzip z; ls -s z.gz >/dev/null; gunzip z.gz; stat -c %s z
tar cf t.tar a b m; tar tf t.tar; rm a b; tar xf t.tar; md5sum a b
(sleep 0.1; echo late) & wait; echo waited
trap 'echo got usr1' USR1; kill -USR1 $$; echo after
sh -c 'kill -9 $$' || echo killed $?
sh -c 'exit 3' || echo status $?
yes | head -100000 | wc -l
mkfifo p; (echo through fifo > p) & cat p; wait
i=0; while [ $i -lt 50 ]; do /bin/true; i=$((i+1)); done; echo forked
seq 1 20000 | awk '{s+=$1} END {print s}'
echo 'a:b:c' | sed 's/:/-/g' | tr a-c A-C
printf '%s\n' x y z | xargs -n1 echo arg
timeout 1 sleep 5 || echo timed out $?
cut -d' ' -f2 /proc/self/stat
[ -c /dev/null ] && echo device
head -c 100 /dev/urandom | wc -c
id -u; pwd; umask
# Reads that begin and end in the middle of pages, and a copy that crosses into pages that are not mapped yet.
head -c 300000 /dev/zero | tr '\0' x | dd bs=4095 2>/dev/null | md5sum
head -c 300000 /dev/zero | tr '\0' y > big; dd if=big bs=12289 skip=3 count=7 2>/dev/null | md5sum
echo hello > o; (exec 3<>o; read -r line <&3; echo "read $line"; echo more >&3); cat o
cat > s <<'X'
#!/bin/sh
echo "script $0 $# $1"
X
chmod +x s; ./s 'a b' c
trap 'echo child' CHLD; sleep 0.01; trap - CHLD
sh -c 'trap "" TERM; kill -TERM $$; echo ignored'
sh -c 'ulimit -n; ulimit -s' | wc -l
(cd /; pwd); cd d2 2>/dev/null || echo no d2
echo x >> app; echo y >> app; cat app; : > app; wc -c < app
touch -d @86400 t; stat -c '%Y %a %F' t; chmod 751 t; stat -c %a t
mkdir q; mv q r; rmdir r; ls r 2>/dev/null || echo gone
ln a hard; stat -c %h a; rm hard; stat -c %h a
sleep 30 & kill $!; wait $! || echo ended $?
# A pipe's openers meet, whichever is first, and however short its writer lives.
n=0; while [ $n -lt 20 ]; do mkfifo f; (echo $n > f) & cat f; wait; rm f; n=$((n + 1)); done | md5sum
# Users and permissions.
grep -q ^u: /etc/passwd 2>/dev/null || { mkdir -p /etc; echo root:x:0:0::/:/bin/sh > /etc/passwd; echo u:x:1000:1000::/:/bin/sh >> /etc/passwd; }
umask 022; mkdir -m 700 mine; echo secret > mine/s; mkdir -m 1777 all; echo r > all/r; chmod 600 all/r; mkdir -m 2775 g; chgrp 7 g; touch g/f; mkdir g/d
stat -c '%a %u %g' mine mine/s all all/r g g/f g/d
su u -s /bin/sh -c 'id -u; id -g; cat mine/s || echo no; cat all/r || echo no; rm -f all/r || echo sticky; echo x > all/u && stat -c "%a %u %g" all/u; chown 0 all/u || echo owner; kill -0 1 || echo not mine; chmod 644 all/r || echo not owner; echo piped | cat /proc/self/fd/0; ls /proc/1/fd || echo not seen' || echo su $?
ls -1 all
