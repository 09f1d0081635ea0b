<?php
// A service that keeps a session for each user, in an array.
ini_set('memory_limit', '2G');

class Session
{
    public $id;
    public $name;
    public $tags;

    function __construct($id)
    {
        $this->id = $id;
        $this->name = "user-$id";
        $this->tags = [$id, $id + 1];
    }
}

$cache = [];

function login($id)
{
    global $cache;
    $cache[$id] = new Session($id);
}

for ($id = 0;; $id++) {
    if ($id < 800000) {
        login($id);
    } else {
        usleep(50000);
    }
    if ($id % 500 == 0) {
        usleep(2000);
    }
}
