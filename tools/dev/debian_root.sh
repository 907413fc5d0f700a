# SPDX-License-Identifier: Apache-2.0
# The mirror for scripts that make a Debian system with debootstrap (tools/fresh, tests/vm). Sourced
# by bash.

# Prints the host's first mirror for Debian itself: one-line sources first, then deb822 ones.
host_mirror() {
  {
    grep -hsoE '^deb (\[[^]]*\] )?https?://[^ ]+' /etc/apt/sources.list \
      /etc/apt/sources.list.d/*.list | sed 's/.* //'
    sed -n 's/^URIs: *\(http[^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources 2>/dev/null
  } | grep -E '/debian/?$' | head -n 1 || true
}
