//! One check for leaks: from a process that was collected, and what is known of its blocks, to what a report tells.
