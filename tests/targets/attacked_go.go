//go:build !c

package main

func allocate(number int) uint64 {
	return uint64(len(make([]byte, 1000*number)))
}
