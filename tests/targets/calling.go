// A Go program whose C code allocates: the Go runtime calls C on another stack, so no walk reaches main.
package main

/*
#include <stdlib.h>
static void *volatile sink;
static __attribute__((noinline)) void called_from_go(int n) { for (int i = 0; i < n; i++) sink = malloc(100 + i); }
*/
import "C"

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for lines.Scan() {
		C.called_from_go(500)
		fmt.Println("done")
	}
}
