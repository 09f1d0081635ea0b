<?php
// Keeps strings: about as many MiB as each line of its input asks for. Prints `ready`, then `done` after each line.
$kept = [];
echo "ready\n";
while (($line = fgets(STDIN)) !== false) {
    for ($at = 0; $at < (int) $line * 4096; $at++) {
        $kept[] = str_repeat("x", 200) . $at;
    }
    echo "done\n";
}
