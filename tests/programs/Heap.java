// SPDX-License-Identifier: Apache-2.0
// A map of a few hundred thousand objects, changed at random under G1; prints a digest of what is in it.
import java.util.HashMap;
import java.util.Random;

public class Heap {
  public static void main(String[] arguments) {
    HashMap<Long, byte[]> map = new HashMap<>();
    Random random = new Random(42);
    for (int i = 0; i < 600_000; ++i) {
      long key = random.nextInt(250_000);
      byte[] value = new byte[200 + random.nextInt(600)];
      random.nextBytes(value);
      map.put(key, value);
    }
    System.gc();
    long digest = 0, bytes = 0;
    for (long key = 0; key < 250_000; ++key) {
      byte[] value = map.get(key);
      if (value == null) continue;
      bytes += value.length;
      for (byte b : value) digest = digest * 31 + b;
    }
    System.out.println(map.size() + " values, " + bytes + " bytes, digest " + digest);
  }
}
