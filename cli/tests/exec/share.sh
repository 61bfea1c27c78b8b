# Operations on files of the shares /mnt/files and /mnt/fixed, whose results are the same on every kernel. They leave the shares as they were.
set +e
cd /mnt/files || exit 1
exec 2> /dev/null
ls -1a; cat given; echo one > a; echo two >> a; cat a; wc -c < a
dd if=/dev/zero of=z bs=1000 count=200 2> /dev/null; echo end >> z; wc -c < z; tail -c 4 z; md5sum z
dd if=z of=y bs=7777 2> /dev/null; cmp y z && echo equal; truncate -s 5 y; wc -c < y; truncate -s 9 y; od -c y
echo xyz | dd of=a bs=1 seek=2 conv=notrunc 2> /dev/null; cat a
chmod 640 a; stat -c '%a %F %s %h' a; touch -d '2020-01-02 03:04:05' a; stat -c %Y a
mkdir -p d/e/f; rmdir d || echo $?; rmdir d/x || echo $?; rmdir d/e/f; ls -1 d
ln a d/hard; stat -c %h a; ln -s ../a d/soft; readlink d/soft; cat d/soft; ln -s /etc/passwd out; ln -s loop loop; cat loop || echo $?
mv a d/e/b; cat d/hard; cat d/soft || echo $?; mv d/e d/moved; cat d/moved/b; mv d d/moved || echo $?; mkdir x; mv x d/moved; rmdir d/moved || echo $?; mv d/moved/b d/hard; ls -1R d
mkdir many; n=0; while [ $n -lt 300 ]; do : > many/file-with-a-long-name-so-that-entries-need-several-answers-$n; n=$((n + 1)); done
ls many | wc -l; ls many | sort | tail -n 1; rm -r many; ls many || echo $?
cp /bin/busybox ./busybox; ./busybox echo a program of the share; ./busybox sh -c 'exit 7'; echo $?
printf '#!/bin/sh\necho a script $0 $1\n' > s; chmod +x s; ./s 1; PATH=/mnt/files; s 2; PATH=/bin
( exec 3<> open; rm open; echo kept >&3; ls open; cat /proc/self/fd/3 ) | cat
mkfifo p; (echo by a pipe > p &); cat p; stat -c %F p; rm p
name=n; while [ ${#name} -lt 255 ]; do name=n$name; done; echo long > $name; cat $name; (echo long > x$name) || echo $?; rm $name
deep=.; n=0; while [ $n -lt 60 ]; do deep=$deep/directory; n=$((n + 1)); done; mkdir -p $deep; echo deep > $deep/f; cat $deep/f; rm -r directory
(cd d; pwd; cd ..; pwd; cd ..; pwd); cat ../../../etc/hostname-that-is-not-there || echo $?; ls -1 ..
tar c d s | tar t | sort; sort z given | tail -n 1; find d | sort; test -w given && echo writable; cat d || echo $?; cat nothing || echo $?; (echo > given/x) || echo $?; (echo > d) || echo $?
(n=0; while [ $n -lt 50 ]; do echo $n; n=$((n + 1)); done > log & n=0; while [ $n -lt 50 ]; do echo $n; n=$((n + 1)); done >> log2; wait); wc -l log log2
for n in 1 2 3 4; do (m=0; while [ $m -lt 25 ]; do echo line >> all; m=$((m + 1)); done) & done; wait; sort all | uniq -c
touch z new; ls -1 new; rm -r new y z d out loop busybox s log log2 all; ls -1
cd /mnt/fixed; ls -1; cat f; (echo no > f) || echo $?; (echo no > g) || echo $?; rm -f f || echo $?; mkdir d || echo $?; mv f g || echo $?
chmod 0 f || echo $?; touch f || echo $?; ln -s f l || echo $?; ./program; cat f
