// A service that keeps a session for each user, in a map.
package main

import (
	"fmt"
	"time"
)

type session struct {
	id   int
	name string
	tags []int
}

var cache = map[int]*session{}

func login(id int) {
	cache[id] = &session{id, fmt.Sprintf("user-%d", id), []int{id, id + 1}}
}

func main() {
	for id := 0; ; id++ {
		if id < 1200000 {
			login(id)
		} else {
			time.Sleep(50 * time.Millisecond)
		}
		if id%500 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
}
