package main

import "C"

// Called by the C code of calling.go, which cannot export it: C definitions are in its preamble.
//
//export called_from_c
func called_from_c(n C.int) { direct(int(n)) }
