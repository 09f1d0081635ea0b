// A round of work by goroutines for `cargo xtask faults --engine inline`: the protocol is that of attacked.h. Built with the tag
// `c`, they allocate in C, too (attacked_c.go).
package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
)

const goroutines = 16

// Uses the goroutine's stack, which grows by moving.
func descend(depth int) uint64 {
	var frame [100]uint64
	for i := range frame {
		frame[i] = uint64(depth * i)
	}
	if depth > 0 {
		frame[5] += descend(depth - 1)
	}
	sum := uint64(0)
	for _, value := range frame {
		sum = sum*31 + value
	}
	return sum
}

func work(number int, sums chan<- uint64) {
	sum := allocate(number)
	for i := 0; i < 20; i++ {
		text := make([]byte, 1000*(i+1))
		sum += descend(i*3) + uint64(sha256.Sum256(text)[5])
	}
	sums <- sum
}

func doRound() uint64 {
	sums := make(chan uint64)
	for i := 0; i < goroutines; i++ {
		go work(i, sums)
	}
	total := uint64(0)
	for i := 0; i < goroutines; i++ {
		total += <-sums
	}
	return total
}

func main() {
	lines := make(chan string)
	go func() {
		input := bufio.NewScanner(os.Stdin)
		for input.Scan() {
			lines <- input.Text()
		}
		lines <- "stop"
	}()
	result, wrong, rounds, waits := doRound(), 0, 1, false
	fmt.Println("ready")
	for {
		line := ""
		if waits {
			line = <-lines
		} else {
			select {
			case line = <-lines:
			default:
			}
		}
		if line == "stop" {
			fmt.Printf("result %016x wrong %d rounds %d\n", result, wrong, rounds)
			return
		}
		if line == "idle" {
			waits = true
			fmt.Println("idle")
			continue
		}
		waits = false
		if doRound() != result {
			wrong++
		}
		rounds++
	}
}
