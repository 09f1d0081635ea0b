// A Go program that never reads its heap profile, so that the linker turns it off.
package main

import (
	"bufio"
	"os"
)

func main() {
	os.Stdout.WriteString("ready\n")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		os.Stdout.WriteString("done\n")
	}
}
