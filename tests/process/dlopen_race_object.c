/* SPDX-License-Identifier: Apache-2.0 */
/* What dlopen_race_test loads. */
int dlopen_race_object(void);
int dlopen_race_object(void) { return 1; }
