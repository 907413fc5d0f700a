<?php
// SPDX-License-Identifier: Apache-2.0
// Documents of libxml, which extensions (dom, simplexml) allocate and free together with it, and strings of PHP's own.
// Prints the extensions that it has, and a checksum.
$document = new DOMDocument();
$root = $document->appendChild($document->createElement("root"));
for ($i = 0; $i < 40000; $i++) {
  $entry = $root->appendChild($document->createElement("entry", str_repeat(md5((string)$i), 8)));
  $entry->setAttribute("n", (string)$i);
}
$text = $document->saveXML();
$sum = 0;
foreach (simplexml_load_string($text)->entry as $entry)
  $sum = ($sum * 31 + crc32((string)$entry) + (int)$entry["n"]) % 1000000007;
$held = [];
for ($i = 0; $i < 150000; $i++) $held[] = str_repeat(chr(65 + $i % 26), 100 + $i % 50);
foreach ($held as $one) $sum = ($sum * 31 + crc32($one)) % 1000000007;
mysqli_report(MYSQLI_REPORT_OFF);
$database = mysqli_init();
$refused = @mysqli_real_connect($database, "127.0.0.1", "x", "x", "x", 1) ? "connected" : "refused";
$loaded = array_filter(["dom", "mysqli", "pdo_mysql", "xsl"], "extension_loaded");
echo implode(" ", $loaded), " $refused ", strlen($text), " $sum\n";
