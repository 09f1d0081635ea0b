// A Go program whose C code allocates. The Go runtime calls C on another stack than that of the caller.
package main

/*
#include <stdlib.h>
extern void called_from_c(int);
static void *volatile sink;
static __attribute__((noinline)) void called_from_go(int n) { for (int i = 0; i < n; i++) sink = malloc(100 + i); }
static __attribute__((noinline)) void calls_go(int n) { called_from_c(n); __asm__ volatile(""); }
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
)

//go:noinline
func direct(n int) { C.called_from_go(C.int(n)) }

//go:noinline
func nested(n int) { C.calls_go(C.int(n)) }

func main() {
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		direct(500)
		done := make(chan bool)
		go func() { nested(500); done <- true }()
		<-done
		fmt.Println("done")
	}
}
