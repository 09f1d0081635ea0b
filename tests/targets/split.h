/* Ways to split the mapping of a large block: what the kernel keeps for some of its pages then differs. */
#include <malloc.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { SPLITS = 7 };

/* The block must have four pages. Its first page, with its header, stays as it is. */
static void split_mapping(char *block, unsigned how) {
    char *page = (char *)(((uintptr_t)block + 8191) & ~(uintptr_t)4095);
    switch (how) {
    case 0: mprotect(page, 4096, PROT_NONE); break;
    case 1: mprotect(page, 4096, PROT_READ); break;
    case 2: mlock(page, 4096); break;
    case 3: madvise(page, 4096, MADV_HUGEPAGE); break;
    case 4: madvise(page, 4096, MADV_DONTDUMP); break;
    case 5: madvise(page, 4096, MADV_DONTFORK); break;
    case 6: prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, page, 4096, "part"); break;
    }
}
