#!/bin/busybox sh
# The first process of the guest. Runs what is in /tests, says how it ended, and switches the machine off.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp TMPDIR=/tmp RUST_BACKTRACE=1 BATCHFS_GUEST=1 BATCHFS_BIN=/bin/batchfs
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs -o mode=1777 tmp /tmp
ln -s /proc/self/fd /dev/fd 2> /dev/null
echo 3 > /proc/sys/kernel/printk
ip link set lo up

for module in $(cat /modules/order); do
    insmod "/modules/$module.ko" || echo "guest: module $module: not loaded"
done

failed=
for test in /tests/*; do
    name=${test##*/}
    echo "guest: begin $name"
    "$test" --test-threads=1
    code=$?
    echo "guest: end $name $code"
    [ "$code" = 0 ] || failed="$failed $name"
done
if [ -n "$failed" ]; then
    echo "guest: failed$failed"
else
    echo "guest: passed"
fi
poweroff -f
