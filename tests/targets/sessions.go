// A service that keeps sessions, and prints its own heap profile, in the tests' protocol. The first argument is the mean number of bytes
// between two samples of the profile, the second one a pipe to read commands from instead of the standard input,
// which are answered on the standard error then. Commands, each on a line:
//
//	add N      N sessions with 1 KiB each, and a word of 24 bytes that an inlined function allocates
//	drop N     forgets the oldest N
//	large N    keeps N blocks of 1 MiB
//	collect    collects garbage, so that the runtime publishes its profile
//	profile    prints `allocs frees size function...` for each callsite of package main as `runtime.MemProfile` has it
//	off, on    turns the runtime's sampling off, and on again
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

type session struct {
	data []byte
	word *[3]uint64
}

var (
	rate     int
	sessions []*session
	kept     [][]byte
	records  = make([]runtime.MemProfileRecord, 1<<14)
)

func init() {
	if len(os.Args) > 1 {
		rate, _ = strconv.Atoi(os.Args[1])
		runtime.MemProfileRate = rate
	}
}

//go:noinline
func newSession() *session {
	return &session{data: make([]byte, 1024), word: newWord()}
}

func newWord() *[3]uint64 {
	return new([3]uint64)
}

//go:noinline
func addSessions(count int) {
	for i := 0; i < count; i++ {
		sessions = append(sessions, newSession())
	}
}

//go:noinline
func newLarge() []byte {
	return make([]byte, 1<<20)
}

func addLarge(count int) {
	for i := 0; i < count; i++ {
		kept = append(kept, newLarge())
	}
}

func dropSessions(count int) {
	for i := 0; i < count; i++ {
		sessions[i] = nil
	}
	sessions = sessions[count:]
}

func printProfile() {
	count, ok := runtime.MemProfile(records, true)
	if !ok {
		panic("too many records")
	}
	for i := range records[:count] {
		record := &records[i]
		if record.AllocObjects == 0 {
			continue
		}
		var names []string
		frames := runtime.CallersFrames(record.Stack())
		for more := true; more; {
			var frame runtime.Frame
			frame, more = frames.Next()
			if strings.HasPrefix(frame.Function, "main.") {
				names = append(names, frame.Function)
			}
		}
		if len(names) > 0 {
			size := record.AllocBytes / record.AllocObjects
			fmt.Println(record.AllocObjects, record.FreeObjects, size, strings.Join(names, " "))
		}
	}
}

func main() {
	fmt.Println("ready")
	input, output := os.Stdin, os.Stdout
	if len(os.Args) > 2 {
		input, _ = os.Open(os.Args[2])
		output = os.Stderr
	}
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		count := 0
		if len(words) > 1 {
			count, _ = strconv.Atoi(words[1])
		}
		switch words[0] {
		case "add":
			addSessions(count)
		case "drop":
			dropSessions(count)
		case "large":
			addLarge(count)
		case "collect":
			runtime.GC()
			runtime.GC()
		case "profile":
			printProfile()
		case "off":
			runtime.MemProfileRate = 0
		case "on":
			runtime.MemProfileRate = rate
		case "exit":
			code, _ := strconv.Atoi(words[1])
			os.Exit(code)
		default:
			panic(words[0])
		}
		fmt.Fprintln(output, "done")
	}
}
