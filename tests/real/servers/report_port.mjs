// Preloaded into the TypeScript reference server, which is otherwise untouched: with PORT=0 it does not tell
// where it listens.
import net from "node:net";
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (...args) {
  this.once("listening", () => process.stdout.write(`PORT ${this.address().port}\n`));
  return listen.apply(this, args);
};
