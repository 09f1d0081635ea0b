/* A program that allocates nothing and ends with 9. */
int main(void) {
    return 9;
}
