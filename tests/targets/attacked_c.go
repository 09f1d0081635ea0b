//go:build c

package main

/*
#include <stdlib.h>
#include <string.h>

static unsigned long allocates(unsigned long number) {
	unsigned long sum = number;
	for (unsigned long i = 0; i < 100; i++) {
		unsigned char *block = malloc(i * 50 + 1);
		memset(block, (int)number, i * 50 + 1);
		block = realloc(block, i * 90 + 2);
		sum = sum * 31 + block[i * 50];
		free(block);
	}
	return sum;
}
*/
import "C"

func allocate(number int) uint64 {
	return uint64(C.allocates(C.ulong(number)))
}
