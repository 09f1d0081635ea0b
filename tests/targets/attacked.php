<?php
// A page for `cargo xtask faults --engine inline`, served by php-fpm: its text is always the same.
$table = [];
for ($i = 0; $i < 400; $i++) {
    $table[$i] = $i % 50 ? range(0, $i % 50) : [];
}
$text = json_encode($table);
$copy = json_decode($text, true);
try {
    throw new Exception(substr($text, 0, 40));
} catch (Exception $error) {
    $text .= $error->getMessage();
}
echo 'result ', hash('sha256', $text . serialize($copy) . str_repeat('y', 3000000)), "\n";
