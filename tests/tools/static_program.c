// SPDX-License-Identifier: Apache-2.0
// A program that the loader preloads nothing into.
int main(void) { return 0; }
