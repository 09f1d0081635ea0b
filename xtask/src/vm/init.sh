#!/bin/busybox sh
# The virtual machine's first process. Profiles targets with heapbpf as a user would, and sends the results over the
# second serial line: `file NAME BYTES`, a newline, the bytes, a newline; `value NAME TEXT`; `done` at the end. The
# host checks the results.

/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
export PATH=/bin
[ -e /heapbpf.bpf.o ] && export HEAPBPF_BPF_OBJECT=/heapbpf.bpf.o
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t debugfs debugfs /sys/kernel/debug
mount -t securityfs securityfs /sys/kernel/security
# The line carries bytes as they are.
data=/dev/$(sed -n 's/.*heapbpf\.data=\([a-zA-Z0-9]*\).*/\1/p' /proc/cmdline)
stty -F "$data" raw -echo
exec 4>"$data"
cd /tmp || poweroff -f

value() {
    printf 'value %s %s\n' "$1" "$2" >&4
}

file() {
    [ -e "$1" ] || return
    printf 'file %s %s\n' "$1" "$(stat -c %s "$1")" >&4
    cat "$1" >&4
    printf '\n' >&4
}

# Waits until FILE has COUNT lines that start with TEXT; gives up after a minute and the time that threads are busy, or
# two seconds after process PID ended.
await() {
    patience=$((600 + 20 * soak))
    until [ "$(grep -c "^$2" "$1" 2>/dev/null)" -ge "$3" ] 2>/dev/null; do
        case $(cut -d ' ' -f 3 "/proc/$4/stat" 2>/dev/null) in
        '' | Z) patience=$((patience - 30)) ;;
        *) patience=$((patience - 1)) ;;
        esac
        [ $patience -gt 0 ] || return 1
        sleep 0.1
    done
}

# How many bytes of libc's code in process PID differ from the file: probes.
probes() {
    line=$(grep -m 1 'r-xp .*/libc\.so\.6$' "/proc/$1/maps") || return
    set -- "$1" ${line}
    start=0x${2%-*} end=0x${2#*-} offset=0x$4 path=$7
    pages=$(((end - start) / 4096))
    dd if="/proc/$1/mem" bs=4096 skip=$((start / 4096)) count=$pages 2>/dev/null >memory
    dd if="$path" bs=4096 skip=$((offset / 4096)) count=$pages 2>/dev/null >code
    cmp -l memory code 2>/dev/null | wc -l
}

# Starts PROGRAM, which may have arguments, and attaches heapbpf to it, as session NAME, with further arguments for heapbpf; requests
# one unit of work.
# heapbpf has priority over the target's threads, or it would drop events.
work=go
# The start of the line with which the target answers.
answer='{'
preload=
# Starts the programs in another user space.
inside=
begin() {
    name=$1 program=$2
    shift 2
    echo "session $name"
    mkfifo "$name.in"
    LD_PRELOAD=$preload TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD=9223372036854775807 \
        $inside /bin/$program <"$name.in" >"$name.ledger" &
    target=$!
    exec 3>"$name.in"
    await "$name.ledger" ready 1 $target
    RUST_LOG=warn,heapbpf::bpf=debug nice -n -20 $inside heapbpf --pid $target "$@" -o "$PWD/$name.json" >"$name.summary" 2>"$name.log" &
    heapbpf=$!
    await "$name.log" 'heapbpf: recording' 1 $heapbpf || return
    value "$name.probes_during" "$(probes $target)"
    # Instructions that the verifier processed for each program.
    value "$name.verified" "$(sed -n 's/.*program `\([a-z_0-9]*\)`: \([0-9]*\) instructions verified.*/\1=\2/p' "$name.log" | tr '\n' ' ')"
    echo "$work" >&3
    await "$name.ledger" "$answer" 1 $target
}

# Lets the target exit with 7.
leave() {
    echo exit 7 >&3
    exec 3>&-
    wait $target
    value "$name.target_code" $?
}

# Waits for the exit of heapbpf.
finish() {
    wait $heapbpf
    value "$name.code" $?
    for kind in json summary log; do file "$name.$kind"; done
}

soak=$(sed -n 's/.*heapbpf\.soak=\([0-9]*\).*/\1/p' /proc/cmdline)
soak=${soak:-0}

value kernel "$(uname -r)"
value machine "$(uname -m)"
value version "$(uname -v)"
value preempt "$(cat /sys/kernel/debug/sched/preempt)"
value lockdown "$(cat /sys/kernel/security/lockdown)"
value command_line "$(cat /proc/cmdline)"

# Every function of libc, with exact counts, with stacks by tables: the target has no frame pointers.
begin tables exact --no-inventory --interval 1 --unwind dwarf
kill -TERM $heapbpf
finish
file tables.ledger
value tables.probes_after "$(probes $target)"
leave

# The same by frame pointers, and by the links that every kernel has.
begin pointers framed --no-inventory --interval 1 --unwind fp --backend perf
kill -TERM $heapbpf
finish
file pointers.ledger
leave

# Frames of an interpreter, in eight threads on two processors.
work=threads
begin interpreted forged_python --no-inventory --interval 1 --native
kill -TERM $heapbpf
finish
leave
work=go

# Eight threads on two processors. After detaching, the target does the same work again.
begin threads threads --interval 1
kill -TERM $heapbpf
finish
echo go >&3
await threads.ledger '{' 2 $target
file threads.ledger
leave

# The same by the inline engine, where the kernel has what it needs.
begin inline threads --interval 1 --engine inline
kill -TERM $heapbpf
finish
file inline.ledger
leave

# The same with few samples: countdowns reach 0 now and then.
begin sampled threads --no-inventory --exclude-heap pages --interval 16KiB --engine inline
kill -TERM $heapbpf
finish
file sampled.ledger
leave

# Resident pages, by processes on two processors: page by page, given back and touched again, and by eight threads at once.
answer=done
work='touch 24'
begin pages touching --heap pages --interval 1
if kill -TERM $heapbpf 2>/dev/null; then :; fi
finish
leave
work='together 24'
begin pages-together touching --heap pages --interval 1
if kill -TERM $heapbpf 2>/dev/null; then :; fi
finish
leave
answer='{' work=go

# The C library in the program, another one, and other allocators, with either engine.
for engine in trap inline; do
    begin static-$engine static --no-inventory --interval 1 --engine $engine
    kill -TERM $heapbpf
    finish
    file static-$engine.ledger
    leave
    work=exact
    for allocator in musl jemalloc tcmalloc mimalloc; do
        program=matrix
        [ $allocator = musl ] && program=musl
        preload=$(echo /preload/lib$allocator*)
        [ -e "$preload" ] || preload=
        begin $allocator-$engine $program --no-inventory --interval 1 --engine $engine
        kill -TERM $heapbpf
        finish
        file $allocator-$engine.ledger
        leave
    done
    work=go preload=
done

# Pointers with tags, which libc's functions return and get.
if [ "$(uname -m)" = aarch64 ]; then
    begin tagged tagged --no-inventory --interval 1
    kill -TERM $heapbpf
    finish
    file tagged.ledger
    leave
fi

# The user spaces of Debian's releases: the same heapbpf, and a program for each C library.
for root in /releases/*; do
    mkdir -p "$root/proc" "$root/sys" "$root/dev" "$root/tmp"
    for folder in proc sys dev tmp; do mount --bind "/$folder" "$root/$folder"; done
    for file in bin/heapbpf heapbpf.bpf.o; do
        [ -e "/$file" ] && touch "$root/$file" && mount --bind "/$file" "$root/$file"
    done
    inside="chroot $root"
    begin "${root##*/}" exact --no-inventory --interval 1
    kill -TERM $heapbpf
    finish
    file "${root##*/}.ledger"
    leave
    # The release's CPython, which describes the stacks of large blocks.
    answer='done'
    python=$(echo "$root"/bin/python3*)
    begin "python-${root##*/}" "${python##*/} /bin/frames.py $PWD/python-${root##*/}.described" --no-inventory --interval 40000
    kill -TERM $heapbpf
    wait $heapbpf
    value "python-${root##*/}.code" $?
    exec 3>&-
    wait $target
    # The line transmits some 100 KB per second.
    for kind in described json summary log; do
        gzip -c "python-${root##*/}.$kind" >"python-${root##*/}.$kind.gz"
        file "python-${root##*/}.$kind.gz"
    done
    answer='{'
done
inside=

# More threads than processors, for long enough that programs are preempted at each of their instructions.
if [ "$soak" -gt 0 ]; then
    for count in 8 64; do
        work="go $count $soak"
        begin soak-$count threads --interval 1 --on-overload drop --ring-size 64MiB
        kill -TERM $heapbpf
        finish
        file soak-$count.ledger
        leave
    done
    work=go
    value soak "$soak"
fi

# A launched command, from its first call on. heapbpf exits with its exit code.
echo "session launched"
printf 'go\nexit 7\n' >commands.in
nice -n -20 heapbpf --interval 1 -o launched.json -- exact <commands.in >launched.ledger 2>launched.log
value launched.code $?
value launched.target_code 7
for kind in ledger json log; do file "launched.$kind"; done

# The target exits while it is profiled.
begin ending exact --no-inventory --interval 1
leave
finish
file ending.ledger

# Processes that fork at the same time, and some that execute programs.
for work in 'fork 8 100' 'exec 8 100'; do
    begin ${work%% *}s forks --interval 1
    kill -TERM $heapbpf
    finish
    leave
done
work=go

# heapbpf or its keeper is killed: the target has its original code, and continues.
begin agent-killed exact --interval 1
kill -KILL $heapbpf
wait $heapbpf
patience=600
while pidof heapbpf-keeper >/dev/null && [ $patience -gt 0 ]; do
    patience=$((patience - 1))
    sleep 0.1
done
value agent-killed.keepers "$(pidof heapbpf-keeper | wc -w)"
value agent-killed.probes_after "$(probes $target)"
leave

begin keeper-killed exact --interval 1
kill -KILL "$(pidof heapbpf-keeper)"
finish
value keeper-killed.probes_after "$(probes $target)"
leave

# Both are killed while calls pass stubs. The target continues, and the next session removes the stubs.
begin stubs-left threads --no-inventory --interval 1 --engine inline
kill -KILL $heapbpf "$(pidof heapbpf-keeper)"
wait $heapbpf
echo go >&3
await stubs-left.ledger '{' 2 $target
rm stubs-left.log
nice -n -20 heapbpf --pid $target --no-inventory --interval 1 --engine trap -o "$PWD/stubs-left.json" \
    >stubs-left.summary 2>stubs-left.log &
heapbpf=$!
await stubs-left.log 'heapbpf: recording' 1 $heapbpf
echo go >&3
await stubs-left.ledger '{' 3 $target
kill -TERM $heapbpf
finish
file stubs-left.ledger
leave

# Calls that stops of the target interrupt return what they would without: the stop for the inventory, the one for the inline
# engine, and those of both snapshot methods.
mkfifo interrupted.in
interrupted_calls <interrupted.in >interrupted.out &
target=$!
exec 3>interrupted.in
await interrupted.out ready 1 $target
nice -n -20 heapbpf --pid $target --engine inline -o "$PWD/interrupted.json" >interrupted.summary 2>interrupted.log &
heapbpf=$!
await interrupted.log 'heapbpf: recording' 1 $heapbpf
echo check >&3
await interrupted.out done 1 $target
kill -TERM $heapbpf
wait $heapbpf
value interrupted.code $?
for snapshot in read fork read fork; do
    heapbpf leaks --pid $target --snapshot $snapshot -o leaks.json >/dev/null 2>interrupted.log
    value interrupted.$snapshot $?
done
echo check >&3
await interrupted.out done 2 $target
echo exit 7 >&3
exec 3>&-
wait $target
value interrupted.target_code $?

# The clock is set back and forth while a target works.
begin clock threads --interval 1
date -s '2001-01-01 00:00:00' >/dev/null
echo go >&3
await clock.ledger '{' 2 $target
date -s '2037-01-01 00:00:00' >/dev/null
kill -TERM $heapbpf
finish
file clock.ledger
leave

# Unreachable blocks: of a running program, by both snapshot methods, and of a launched command. Contents are not needed.
check_leaks() {
    name=$1
    shift
    echo "leaks $name"
    heapbpf leaks --limit 1000 -o "$name.json" "$@" >"$name.summary" 2>"$name.log"
    value "$name.code" $?
    for kind in json summary log; do file "$name.$kind"; done
}

mkfifo leaking.in
cases <leaking.in >leaking.truth &
target=$!
exec 3>leaking.in
await leaking.truth ready 1 $target
check_leaks leaks-read --pid $target
check_leaks leaks-fork --pid $target --snapshot fork
exec 3>&-
wait $target
file leaking.truth
printf 'truth\nexit 0\n' >commands.in
check_leaks leaks-exit -- sh -c 'exec cases <commands.in >ended.truth'
file ended.truth

# Stacks of other programs, and what framehop finds.
if [ -e /bin/unwind ]; then
    echo "comparison"
    unwind --skip redis --skip git --skip compiler --skip a_process >comparison.text 2>&1
    value comparison.code $?
    file comparison.text
fi

# Integration tests of Java and JavaScript, in a user space of their own. Emulation takes long: loops have fewer rounds, and heapbpf more
# time to read names.
if [ -e /languages ]; then
    mkdir -p /languages/proc /languages/sys /languages/dev /languages/tmp
    # Not `tmp`: the repository, whose path the tests contain, may be in it.
    for folder in proc sys dev; do mount --bind "/$folder" "/languages/$folder"; done
    for file in bin/busybox bin/heapbpf heapbpf.bpf.o; do
        [ -e "/$file" ] && touch "/languages/$file" && mount --bind "/$file" "/languages/$file"
    done
    /bin/busybox --install -s /languages/bin
    export LC_ALL=C.UTF-8 HEAPBPF_BIN=/bin/heapbpf HEAPBPF_INTERPRETERS=/interpreters HEAPBPF_ROUNDS=300 HEAPBPF_SLOWNESS=50
    for test in java javascript; do
        echo "language $test"
        # shellcheck disable=SC2046
        PATH=/usr/bin:/bin chroot /languages "/tests/debug/deps/$test" --test-threads 1 --nocapture --exact \
            $(cat "/languages/tests/$test") >"$test.text" 2>&1
        value "$test.code" $?
        file "$test.text"
    done
fi

printf 'done\n' >&4
poweroff -f
