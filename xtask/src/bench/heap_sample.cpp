// Preloaded beside tcmalloc: writes its heap sample to $HEAP_SAMPLE when the program exits.
#include <cstdio>
#include <cstdlib>
#include <gperftools/malloc_extension.h>
#include <string>

__attribute__((destructor)) static void write_sample() {
    const char *path = std::getenv("HEAP_SAMPLE");
    std::FILE *file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    std::string sample;
    MallocExtension::instance()->GetHeapSample(&sample);
    std::fputs(sample.c_str(), file);
    std::fclose(file);
}
