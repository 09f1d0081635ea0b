package main

// Goroutines that wait in system calls on small stacks, and others whose variables would notice a change. Prints `ready`, then a
// number again and again.

/*
#include <stdlib.h>
static void churn(void) { volatile char *block = malloc(64); *block = 1; free((void *)block); }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
)

func deepen(left int, file int, buffer []byte) int {
	var frame [64]byte
	frame[left&63] = byte(left)
	if left == 0 {
		count, err := syscall.Read(file, buffer)
		if err != nil {
			panic(err)
		}
		return count + int(frame[1])
	}
	return deepen(left-1, file, buffer) + int(frame[left&63]) - int(byte(left))
}

func remember(id uint64, turns chan bool) {
	var words [40]uint64
	for at := range words {
		words[at] = id*1000 + uint64(at)
	}
	for range turns {
		for at := range words {
			if words[at] != id*1000+uint64(at) {
				os.Exit(9)
			}
		}
	}
}

func main() {
	runtime.GOMAXPROCS(4)
	var all []chan bool
	for id := 0; id < 400; id++ {
		turns := make(chan bool, 1)
		go remember(uint64(id), turns)
		all = append(all, turns)
	}
	for id := 0; id < 40; id++ {
		var ends [2]int
		if err := syscall.Pipe(ends[:]); err != nil {
			panic(err)
		}
		go func(file, depth int) {
			buffer := make([]byte, 8)
			for {
				deepen(depth%8, file, buffer)
			}
		}(ends[0], id)
		go func(file int) {
			for {
				time.Sleep(70 * time.Millisecond)
				syscall.Write(file, []byte("x"))
			}
		}(ends[1])
	}
	go func() {
		for {
			C.churn()
			time.Sleep(50 * time.Microsecond)
		}
	}()
	fmt.Println("ready")
	for turn := 0; ; turn++ {
		time.Sleep(10 * time.Millisecond)
		for _, turns := range all {
			select {
			case turns <- true:
			default:
			}
		}
		if turn%5 == 0 {
			runtime.GC()
		}
		if turn%20 == 0 {
			fmt.Println("turn", turn)
		}
	}
}
